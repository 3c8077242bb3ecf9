"""`tidegate serve` as a process of its own, with its log read line by line."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

TIMEOUT_S = 300  # a busy machine may take a minute to import torch

# What a test must not inherit from the shell it runs in.
CLEAN_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}


def run_tidegate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tidegate_server", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=CLEAN_ENVIRONMENT | environment,
        check=False,
    )


class RunningServer:
    """A server process; leaving the context ends it."""

    def __init__(self, *arguments: str, termination_message: Path | None = None) -> None:
        command = [sys.executable, "-m", "tidegate_server", "serve", "--host=127.0.0.1", "--port=0", "--ops-port=0"]
        if termination_message is not None:
            command.append(f"--termination-message-path={termination_message}")
        self.process = subprocess.Popen(
            [*command, "--log-format=json", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=CLEAN_ENVIRONMENT | {"OMP_NUM_THREADS": "1"},
        )
        self.log: list[dict[str, Any]] = []
        self.noise: list[str] = []  # lines that are no JSON: there should be none
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.exit_code()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._news:
                    if line.startswith("{"):
                        self.log.append(json.loads(line))
                    else:
                        self.noise.append(line)
                    self._news.notify_all()
        with self._news:
            self.log.append({"event": "end of log"})
            self._news.notify_all()

    def event(self, name: str) -> dict[str, Any]:
        """Wait for a line of the log."""

        def found() -> dict[str, Any] | None:
            return next((line for line in self.log if line["event"] == name), None)

        with self._news:
            self._news.wait_for(lambda: found() is not None or self._ended(), TIMEOUT_S)
            line = found()
        assert line is not None, f"no {name} in {self.log} {self.noise}"
        return line

    def _ended(self) -> bool:
        return bool(self.log) and self.log[-1]["event"] == "end of log"

    def ready(self) -> tuple[str, str]:
        """The URLs of the API and of the ops port, once requests are taken."""
        line = self.event("ready")
        return f"http://127.0.0.1:{line['port']}", f"http://127.0.0.1:{line['ops_port']}"

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (pid,) = [int(child) for child in children]
        return pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for the end."""
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code


def wait_for_status(url: str, status: int) -> httpx.Response:
    """Ask until the answer has this status."""
    with httpx.Client(timeout=30) as http:
        for _ in range(TIMEOUT_S * 20):
            reply = http.get(url)
            if reply.status_code == status:
                return reply
            threading.Event().wait(0.05)
    raise AssertionError(f"{url} never answered {status}; last {reply.status_code}: {reply.text}")
