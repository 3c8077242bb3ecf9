"""`kubectl port-forward` for the length of a `with` block."""

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tests.e2e.kube import Kube

START_TIMEOUT_S = 30


@contextmanager
def port_forward(kube: Kube, target: str, namespace: str, remote_port: int) -> Iterator[int]:
    """Forward a free local port to `target` (`service/x`, `pod/y`) and give its number."""
    process = subprocess.Popen(
        kube.command("port-forward", "-n", namespace, target, f":{remote_port}", "--address", "127.0.0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # kubectl says nothing while it waits for a pod; without the timer a pod that never runs would hold the test.
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    assert process.stdout is not None
    drain = threading.Thread(target=_discard, args=(process.stdout,), daemon=True)
    try:
        local_port = _announced_port(process.stdout, target)
        timer.cancel()
        drain.start()  # it writes a line per connection, and would stop at a full pipe
        yield local_port
    finally:
        timer.cancel()
        process.terminate()
        process.wait(timeout=10)
        if drain.ident is not None:
            drain.join(timeout=10)
        process.stdout.close()


def _announced_port(output: IO[str], target: str) -> int:
    said = []
    for line in output:
        said.append(line)
        if found := re.search(r"127\.0\.0\.1:(\d+) ->", line):
            return int(found.group(1))
    raise AssertionError(f"port-forward to {target} did not start: {''.join(said)}")


def _discard(output: IO[str]) -> None:
    for _ in output:
        pass
