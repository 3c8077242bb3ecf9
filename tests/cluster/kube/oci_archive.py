"""OCI image archives, as containerd imports them: a tar of content-addressed blobs and an index that names images."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# How a manifest or an index points at a blob: media type, digest, size, annotations.
Descriptor = dict[str, Any]


def descriptor(media_type: str, data: bytes) -> Descriptor:
    return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}


def image_index(manifest: Descriptor, name: str) -> bytes:
    """An index of one image, with the full name that containerd is to give it."""
    named = {**manifest, "annotations": {"io.containerd.image.name": name}}
    return json.dumps({"schemaVersion": 2, "manifests": [named]}).encode()


def write_archive(out: IO[bytes], index: bytes, blobs: Iterable[tuple[str, bytes | Path]]) -> None:
    """Stream an archive.

    Args:
        blobs: digest, and the content or the file that has it. An archive may leave out what the reader already has.
    """
    with tarfile.open(fileobj=out, mode="w|") as archive:
        _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        for digest, content in blobs:
            name = f"blobs/sha256/{digest.removeprefix('sha256:')}"
            if isinstance(content, Path):
                info = tarfile.TarInfo(name)
                info.size = content.stat().st_size
                with content.open("rb") as source:
                    archive.addfile(info, source)
            else:
                _add(archive, name, content)
        _add(archive, "index.json", index)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
