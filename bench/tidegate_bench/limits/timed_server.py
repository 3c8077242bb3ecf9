"""`tidegate serve` whose engine notes its steps' times: `python -m tidegate_bench.limits.timed_server RECORD FLAGS`."""

import functools
import os
import sys
from pathlib import Path

import uvloop

from tidegate_bench.limits.timed_engine import load_timed_runner
from tidegate_server import log as logs
from tidegate_server.listeners import bind
from tidegate_server.pod import Listeners, Pod
from tidegate_server.settings import read_settings


def main() -> int:
    record, *flags = sys.argv[1:]
    settings, _ = read_settings(flags, os.environ)
    logs.configure(settings.log_format, settings.log_level)
    api = bind(settings.host, settings.port, "--port")
    ops = bind(settings.host, settings.ops_port, "--ops-port")
    load_runner = functools.partial(load_timed_runner, record=Path(record))

    async def live() -> int:
        return await Pod(settings, Listeners(api=api, ops=ops), load_runner).run()

    return uvloop.run(live())


if __name__ == "__main__":
    sys.exit(main())
