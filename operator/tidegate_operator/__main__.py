"""`tidegate-operator`: `run` serves, `crd` prints the CustomResourceDefinition."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from tidegate_operator.crd import crd_yaml
from tidegate_operator.errors import OperatorError
from tidegate_operator.log import configure_logging
from tidegate_operator.operator_process import run_operator
from tidegate_operator.settings import add_flags, read_settings, version


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.command == "crd":
        sys.stdout.write(crd_yaml())
        return 0
    try:
        settings = read_settings(vars(arguments))
        configure_logging(settings.log_format, settings.log_level)
        return asyncio.run(run_operator(settings))
    except OperatorError as error:
        sys.stderr.write(f"tidegate-operator: {error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate-operator", description="Runs InferenceServices on Kubernetes.")
    parser.add_argument("--version", action="version", version=f"tidegate-operator {version()}")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="serve the cluster; each flag is also an environment variable")
    add_flags(run)
    commands.add_parser("crd", help="print the CustomResourceDefinition as YAML")
    return parser


if __name__ == "__main__":
    sys.exit(main())
