"""The fake endpoint as a process with a child of its own, to be started and stopped like a real server."""

import argparse
import asyncio
import subprocess
import sys

from aiohttp import web

from tests.bench.fake_server import FakeServer

CHILD = "import time; time.sleep(600)"


async def serve(port: int) -> None:
    runner = web.AppRunner(FakeServer().app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fail", action="store_true", help="say why and end before serving")
    arguments = parser.parse_args()
    if arguments.fail:
        sys.stderr.write("no weights found\n")
        sys.exit(3)
    subprocess.Popen([sys.executable, "-c", CHILD])
    asyncio.run(serve(arguments.port))


if __name__ == "__main__":
    main()
