"""A pod inside the cluster that runs the official openai client, wherever the cluster's nodes come from.

The pod runs the server's image, which every node has already, and gets the client's packages from this test's own
environment by `kubectl exec`: no further image has to be built, and no registry has to be reached.
"""

import io
import json
import re
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from queue import Empty, Queue
from typing import IO

from tests.e2e.kube import Json, Kube, KubectlError
from tests.e2e.wait import NotYet, eventually

POD = "openai-client"
PACKAGES_DIR = "/client"
PROGRAM = Path(__file__).parent / "chat_client.py"


@dataclass(frozen=True, slots=True)
class Chat:
    id: str
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ChatResult:
    id: str
    tokens: tuple[str, ...]
    finish_reason: str | None
    error: str | None


@dataclass(slots=True)
class RunningChats:
    """Chats that stream in the pod while the test does something to the cluster."""

    process: subprocess.Popen[str]
    events: Queue[Json | None]  # None: the program has ended
    errors: Queue[str]
    results: list[ChatResult] = field(default_factory=list)

    def wait_for_first_tokens(self, ids: Sequence[str], *, within_s: float) -> None:
        """Block until each of these chats has got a token."""
        missing = set(ids)
        while missing:
            event = self._next(within_s, f"first tokens of {sorted(missing)}")
            if event["event"] == "first_token":
                missing.discard(event["id"])
            else:
                raise AssertionError(f"a chat ended before the others began: {event}")

    def has_ended(self) -> bool:
        """Whether the program is done, and with it every chat that does not repeat."""
        return any(event is None or event["event"] == "done" for event in tuple(self.events.queue))

    def finish(self, *, within_s: float) -> list[ChatResult]:
        """Ask repeating chats to stop, and give every result once all have ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already; why stands in its errors
            self.process.stdin.write("finish\n")
            self.process.stdin.flush()
        while True:
            try:
                event = self.events.get(timeout=within_s)
            except Empty:
                raise AssertionError(f"chats did not end within {within_s:g} s of each other") from None
            if event is None:
                break
            self._keep(event)
        status = self.process.wait(timeout=30)
        assert status == 0, f"the client program failed: {self.errors.get(timeout=10)}"
        return self.results

    def _next(self, within_s: float, what: str) -> Json:
        try:
            event = self.events.get(timeout=within_s)
        except Empty:
            raise AssertionError(f"no {what} within {within_s:g} s") from None
        if event is None:
            raise AssertionError(f"the client program ended early: {self.errors.get(timeout=10)}")
        self._keep(event)
        return event

    def _keep(self, event: Json) -> None:
        if event["event"] == "done":
            self.results.append(ChatResult(event["id"], tuple(event["tokens"]), event["finish_reason"], event["error"]))


@dataclass(frozen=True, slots=True)
class ClientPod:
    """The running pod; `base_url` is what a client in the cluster would use."""

    kube: Kube
    namespace: str

    @contextmanager
    def chats(
        self, base_url: str, model: str, chats: Sequence[Chat], *, repeat: bool = False
    ) -> Iterator[RunningChats]:
        """Stream these chats, all at once, for the length of the block; `finish` gives their results."""
        job: Mapping[str, object] = {
            "base_url": base_url,
            "model": model,
            "repeat": repeat,
            "chats": [{"id": chat.id, "prompt": chat.prompt, "max_tokens": chat.max_tokens} for chat in chats],
        }
        process = subprocess.Popen(
            self.kube.command(
                *("exec", "-i", "-n", self.namespace, POD, "--"),
                *("env", f"PYTHONPATH={PACKAGES_DIR}", "python3", f"{PACKAGES_DIR}/{PROGRAM.name}", json.dumps(job)),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running = RunningChats(process, Queue(), Queue())
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=_read_events, args=(process.stdout, running.events), daemon=True),
            threading.Thread(target=_read_all, args=(process.stderr, running.errors), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            yield running
        finally:
            process.kill()
            process.wait(timeout=10)
            for reader in readers:
                reader.join(timeout=10)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()

    def run_chats(self, base_url: str, model: str, chats: Sequence[Chat], *, within_s: float) -> list[ChatResult]:
        with self.chats(base_url, model, chats) as running:
            return running.finish(within_s=within_s)


def start_client_pod(kube: Kube, namespace: str, image: str) -> ClientPod:
    """Start the pod and bring it the openai client."""
    kube.apply(_manifest(namespace, image))
    eventually(lambda: _check_running(kube, namespace), within_s=90)
    done = subprocess.run(
        kube.command("exec", "-i", "-n", namespace, POD, "--", "tar", "-x", "-C", PACKAGES_DIR),
        input=_packages(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise KubectlError(done.stderr.decode())
    return ClientPod(kube, namespace)


def _manifest(namespace: str, image: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": namespace},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True},
            "containers": [
                {
                    "name": "client",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
                    "volumeMounts": [{"name": "client", "mountPath": PACKAGES_DIR}],
                }
            ],
            "volumes": [{"name": "client", "emptyDir": {}}],
        },
    }


def _check_running(kube: Kube, namespace: str) -> None:
    phase = kube.get("pod", POD, namespace)["status"]["phase"]
    if phase != "Running":
        raise NotYet(f"pod {POD} is {phase}")


def _packages() -> bytes:
    """A tar of our client program, of openai, and of everything openai needs, from this environment."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(PROGRAM, arcname=PROGRAM.name)
        for name in sorted(_with_dependencies("openai")):
            for file in metadata.distribution(name).files or ():
                if ".." not in file.parts and file.suffix != ".pyc":
                    archive.add(str(file.locate()), arcname=str(file), recursive=False)
    return buffer.getvalue()


def _with_dependencies(root: str) -> set[str]:
    """The distribution and those it requires here, directly or not."""
    found: set[str] = set()
    open_names = [root]
    while open_names:
        name = open_names.pop()
        if name in found:
            continue
        try:
            requires = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:  # a requirement for other platforms or an extra that is not installed
            continue
        found.add(name)
        open_names += [
            re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
            for requirement in requires
            if "extra ==" not in requirement
        ]
    return found


def _read_events(pipe: IO[str], events: Queue[Json | None]) -> None:
    for line in pipe:
        events.put(json.loads(line))
    events.put(None)


def _read_all(pipe: IO[str], errors: Queue[str]) -> None:
    errors.put(pipe.read())
