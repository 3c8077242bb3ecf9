"""`make serve`: one pod's server on this machine, and a curl to try once it is ready."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tidegate_contract.labels import READY_PATH
from tidegate_server.errors import InvalidSetting
from tidegate_server.listeners import bind
from tidegate_server.settings import read_settings

HOST = "127.0.0.1"


def main(flags: Sequence[str]) -> int:
    """Run `tidegate serve` with the given flags until it ends or Ctrl-C; its exit status."""
    arguments = ["--host", HOST, "--device", "cpu", *flags]
    try:
        settings, _ = read_settings(arguments, os.environ)
    except InvalidSetting as error:
        return say(str(error))
    try:
        # Before the server starts: where another one has the ports, it would be that one which says it is ready.
        port, ops_port = free_port(settings.port, "--port"), free_port(settings.ops_port, "--ops-port")
    except InvalidSetting as error:
        return say(f"{error}; for example: TIDEGATE_PORT=8001 TIDEGATE_OPS_PORT=9001 make serve")
    started = time.monotonic()
    server = subprocess.Popen(
        [Path(sys.executable).parent / "tidegate", "serve", *arguments, f"--port={port}", f"--ops-port={ops_port}"]
    )
    # A terminal sends Ctrl-C to the server as well, which then ends by itself; kill(1) reaches only this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    while server.poll() is None:
        if is_ready(ops_port):
            sys.stdout.write(hint(port, settings.model_name, time.monotonic() - started))
            sys.stdout.flush()
            break
        time.sleep(0.1)
    return server.wait()


def say(problem: str) -> int:
    sys.stderr.write(f"make serve: {problem}\n")
    return 2


def free_port(port: int, flag: str) -> int:
    """The port, or any free one for 0.

    Raises:
        InvalidSetting: somebody has it.
    """
    with bind(HOST, port, flag) as listener:
        number: int = listener.getsockname()[1]
    return number


def is_ready(ops_port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, ops_port, timeout=1)  # urllib would ask a proxy
    try:
        connection.request("GET", READY_PATH)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def hint(port: int, model: str, ready_s: float) -> str:
    """What to type next."""
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    # Greedy and short: so small a model draws nonsense now and then, and does not always find an end.
    body = {"model": model, "stream": True, "temperature": 0, "max_tokens": 96, "messages": question}
    return (
        f"\nReady after {ready_s:.1f} s. In another terminal:\n\n"
        f"  curl -N http://{HOST}:{port}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{json.dumps(body)}'\n\n"
        "Ctrl-C ends it.\n\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
