"""containerd's shims: one process per pod, outliving containerd, found by the socket they report to."""

from pathlib import Path

from tests.cluster.kube.processes import ProcessRecord, record_of


def belongs_to(arguments: bytes, socket: Path) -> bool:
    """Whether a process's command line (`/proc/PID/cmdline`) is that of a shim of this containerd."""
    words = arguments.split(b"\0")
    return b"containerd-shim" in words[0] and str(socket).encode() in words


def shims_of(socket: Path) -> list[ProcessRecord]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            ours = belongs_to((folder / "cmdline").read_bytes(), socket)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if ours and (record := record_of("shim", int(folder.name))):
            found.append(record)
    return found
