"""The image of the container that holds a pod's namespaces: one static program and nothing else."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.cluster.kube import oci_archive


def pause_archive(program: Path, name: str) -> Callable[[IO[bytes]], None]:
    """A writer of the image's archive."""
    layer = _layer(program.read_bytes())
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [oci_archive.digest_of(layer)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": oci_archive.MANIFEST_TYPE,
            "config": oci_archive.descriptor(oci_archive.CONFIG_TYPE, config),
            "layers": [oci_archive.descriptor(oci_archive.LAYER_TYPE, layer)],
        }
    ).encode()
    index = oci_archive.image_index(oci_archive.descriptor(oci_archive.MANIFEST_TYPE, manifest), name)
    blobs = [(oci_archive.digest_of(blob), blob) for blob in (layer, config, manifest)]
    return lambda out: oci_archive.write_archive(out, index, blobs)


def _layer(program: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("pause")
        info.mode = 0o755
        info.size = len(program)
        archive.addfile(info, io.BytesIO(program))
    return buffer.getvalue()
