"""Becomes another program on fewer CPUs or in a cgroup: `python -m tidegate_bench.limits.confined ... -- PROGRAM`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def confined_argv(argv: Sequence[str], cpus: frozenset[int] = frozenset(), group: Path | None = None) -> list[str]:
    """The command that starts `argv` so; the process keeps its number."""
    options = ["--cpus", ",".join(str(cpu) for cpu in sorted(cpus))] if cpus else []
    if group is not None:
        options += ["--cgroup", str(group)]
    return [sys.executable, "-m", "tidegate_bench.limits.confined", *options, "--", *argv] if options else list(argv)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpus", help="numbers of CPUs, with commas between")
    parser.add_argument("--cgroup", type=Path, help="the group's folder")
    parser.add_argument("program", nargs="+")
    arguments = parser.parse_args()
    if arguments.cpus is not None:
        os.sched_setaffinity(0, {int(cpu) for cpu in arguments.cpus.split(",")})
    if arguments.cgroup is not None:
        (arguments.cgroup / "cgroup.procs").write_text(f"{os.getpid()}\n")
    os.execvp(arguments.program[0], arguments.program)


if __name__ == "__main__":
    main()
