"""`make serve`: one pod's server on this machine, and a curl to try once it is ready."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tidegate_contract.labels import API_PORT, OPS_PORT, READY_PATH


def main() -> int:
    """Run `tidegate serve` with the given flags until it ends or Ctrl-C; its exit status."""
    port = os.environ.get("TIDEGATE_PORT", str(API_PORT))
    ops_port = os.environ.get("TIDEGATE_OPS_PORT", str(OPS_PORT))
    started = time.monotonic()
    server = subprocess.Popen(
        [Path(sys.executable).parent / "tidegate", "serve", "--host", "127.0.0.1", "--device", "cpu", *sys.argv[1:]]
    )
    # A terminal sends Ctrl-C to the server as well, which then ends by itself; kill(1) reaches only this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    while server.poll() is None:
        if is_ready(f"http://127.0.0.1:{ops_port}{READY_PATH}"):
            sys.stdout.write(hint(port, time.monotonic() - started))
            sys.stdout.flush()
            break
        time.sleep(0.1)
    return server.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def hint(port: str, ready_s: float) -> str:
    """What to type next."""
    url = f"http://127.0.0.1:{port}/v1"
    with urllib.request.urlopen(f"{url}/models", timeout=5) as reply:
        model = json.load(reply)["data"][0]["id"]
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    return (
        f"\nReady after {ready_s:.1f} s. In another terminal:\n\n"
        f"  curl -N {url}/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{json.dumps(body)}'\n\n"
        "Ctrl-C ends it.\n\n"
    )


if __name__ == "__main__":
    sys.exit(main())
