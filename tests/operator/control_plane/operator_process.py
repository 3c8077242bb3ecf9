"""One `tidegate-operator run` as a process of its own, started and ended by its id."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.wait import NotYet, eventually

START_TIMEOUT_S = 60  # two seconds of imports, more on a busy machine
END_TIMEOUT_S = 20


@dataclass(slots=True)
class OperatorProcess:
    process: "subprocess.Popen[bytes]"
    identity: str
    log: Path

    @classmethod
    def start(cls, kubeconfig: Path, namespace: str, *, identity: str, image: str, log: Path) -> "OperatorProcess":
        environment = os.environ | {
            "KUBECONFIG": str(kubeconfig),
            "TIDEGATE_OPERATOR_SERVER_IMAGE": image,
            "TIDEGATE_OPERATOR_NAMESPACES": namespace,
            "TIDEGATE_OPERATOR_LEASE_NAMESPACE": namespace,
            "TIDEGATE_OPERATOR_IDENTITY": identity,
            "TIDEGATE_OPERATOR_OPS_PORT": "0",
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidegate_operator", "run"], env=environment, stdout=out, stderr=out
            )
        return cls(process, identity, log)

    def wait_until_leading(self, *, within_s: float = START_TIMEOUT_S) -> None:
        self.wait_until("lease_acquired", within_s=within_s)

    def wait_until(self, event: str, *, within_s: float = START_TIMEOUT_S) -> None:
        """Until its log has this event."""

        def check() -> None:
            if event not in self.log.read_text():
                raise NotYet(f"{self.identity} has not said {event}:\n{self.log.read_text()}")

        eventually(check, within_s=within_s)

    def stop(self) -> int:
        """End it as Kubernetes does; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_TIMEOUT_S)

    def kill(self) -> None:
        """End it as a lost node does."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_TIMEOUT_S)
