"""What we ask of a node's containerd, through its own client `ctr`."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.cluster.kube.errors import ClusterError
from tests.cluster.kube.shell import last_line, run, succeeds

NAMESPACE = "k8s.io"  # where the kubelet's images and containers are
_INGEST_TRIES = 5


class Containerd:
    """One node's containerd."""

    def __init__(self, socket: Path) -> None:
        self._ctr = ["ctr", "--address", str(socket), "--namespace", NAMESPACE]

    def answers(self) -> bool:
        return succeeds([*self._ctr, "version"])

    def images(self) -> dict[str, str]:
        """Every name in the image store, with the digest of what it names."""
        rows = run([*self._ctr, "images", "list"]).splitlines()[1:]
        return {fields[0]: fields[2] for fields in (row.split() for row in rows)}

    def blob_digests(self) -> set[str]:
        """Everything that it has stored by content: manifests, configs and layers."""
        return set(run([*self._ctr, "content", "list", "--quiet"]).split())

    def ingest(self, digest: str, path: Path) -> None:
        """Take one blob in and keep it; where the store has its file already (see `share_blobs`) nothing is copied.

        Raises:
            ClusterError: containerd refused it.
        """
        # A garbage collection that an image's removal has set off may come between the two calls and take it away.
        for _ in range(_INGEST_TRIES):
            self._ingest_once(digest, path)
            if succeeds(self._label_command(digest, "kept")):
                return
        raise ClusterError(
            f"containerd loses the layer {digest} as soon as it has it; look into the node's containerd log"
        )

    def _ingest_once(self, digest: str, path: Path) -> None:
        expected = ["--expected-digest", digest, "--expected-size", str(path.stat().st_size)]
        with path.open("rb") as source:
            argv = [*self._ctr, "content", "ingest", *expected, f"load-{digest}"]
            done = subprocess.run(argv, stdin=source, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"containerd did not take the layer {digest}: {last_line(done.stderr)}")

    @contextmanager
    def keeping(self, digests: Sequence[str]) -> Iterator[None]:
        """Let blobs that are ingested in the body survive garbage collection until an image needs them."""
        yield
        for digest in digests:
            run(self._label_command(digest, ""))

    def _label_command(self, digest: str, value: str) -> list[str]:
        return [*self._ctr, "content", "label", digest, f"containerd.io/gc.root={value}"]

    def import_archive(self, write_archive: Callable[[IO[bytes]], None]) -> None:
        """Stream an OCI archive into the image store and unpack its layers.

        Raises:
            ClusterError: containerd refused it.
        """
        argv = [*self._ctr, "images", "import", "-"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                write_archive(process.stdin)
                process.stdin.close()
            except BrokenPipeError:
                pass  # it gave up early; its own words say why
            words = process.stdout.read().decode(errors="replace")
        if process.returncode != 0:
            raise ClusterError(f"containerd did not take the image: {last_line(words)}")

    def remove_images(self, names: list[str]) -> None:
        if names:
            run([*self._ctr, "images", "remove", "--sync", *names])

    def remove_containers(self) -> None:
        """End every container, so that the image store can serve the next cluster without a trace of this one."""
        containers = run([*self._ctr, "containers", "list", "--quiet"]).split()
        if containers:
            succeeds([*self._ctr, "tasks", "delete", "--force", *containers])
            succeeds([*self._ctr, "containers", "delete", *containers])
