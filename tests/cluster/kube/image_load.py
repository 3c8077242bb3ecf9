"""Put a built image on the nodes, moving only what a node does not have."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube import oci_archive
from tests.cluster.kube.console import stage
from tests.cluster.kube.containerd import Containerd
from tests.cluster.kube.image_build import image_name, image_store
from tests.cluster.kube.lock import exclusive
from tests.cluster.kube.node_config import node_files
from tests.cluster.kube.oci_archive import Descriptor
from tests.cluster.kube.paths import ClusterPaths, cache_root, require_disk
from tests.cluster.kube.spec import ClusterSpec

# As an OCI layout, whose layers the nodes share, and unpacked on a node.
_LOAD_GB = {"operator": 1.3, "server": 14.0}
_REF_NAME = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class LayoutImage:
    """One image of an OCI layout folder: its manifest's descriptor, and the digests of its config and layers."""

    manifest: Descriptor
    config: str
    layers: tuple[str, ...]

    @property
    def blobs(self) -> tuple[str, ...]:
        return (self.manifest["digest"], self.config, *self.layers)


def named_manifests(layout: Path) -> dict[str, Descriptor]:
    """The manifests' descriptors by image name; a name that has moved on leaves its old entry without one."""
    entries = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
    names = [entry.get("annotations", {}).get(_REF_NAME) for entry in entries]
    return {name: entry for name, entry in zip(names, entries, strict=True) if name is not None}


def read_layout(layout: Path, name: str) -> LayoutImage:
    """Find an image in a layout by its name."""
    entry = named_manifests(layout)[name]
    descriptor = {key: entry[key] for key in ("mediaType", "digest", "size")}
    manifest = json.loads(blob_path(layout, descriptor["digest"]).read_text(encoding="utf-8"))
    layers = tuple(dict.fromkeys(layer["digest"] for layer in manifest["layers"]))
    return LayoutImage(descriptor, manifest["config"]["digest"], layers)


def blob_path(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def missing_gb(target: str) -> float:
    """What loading an image takes of the disk, next to nothing where only our own code has changed."""
    index = _layout() / "index.json"
    is_loaded = index.exists() and image_name(target) in named_manifests(_layout())
    return 0 if is_loaded else _LOAD_GB[target]


def load(spec: ClusterSpec, paths: ClusterPaths, target: str) -> None:
    """Bring an image from the build store to every node of a cluster."""
    name, layout = image_name(target), _layout()
    with exclusive(cache_root() / "layout.lock", "loading images"):
        require_disk(cache_root(), missing_gb(target), f"loading {name}")
        with stage(f"copying {name} out of the build store"):
            image_store().copy_to_layout(name, layout)
        image = read_layout(layout, name)
        for index in spec.node_indexes:
            files = node_files(paths, index)
            with stage(f"loading it into {spec.node_name(index)}"):
                _load_on_node(Containerd(files.socket), files.image_store, layout, image, name)
        prune(layout)


def _layout() -> Path:
    return cache_root() / "layout"


def _load_on_node(containerd: Containerd, store: Path, layout: Path, image: LayoutImage, name: str) -> None:
    present = containerd.blob_digests()
    missing = [digest for digest in image.layers if digest not in present]
    share_blobs(layout, store / "io.containerd.content.v1.content", missing)
    with containerd.keeping(missing):
        for digest in missing:
            containerd.ingest(digest, blob_path(layout, digest))
        # The archive carries no layers: containerd has them all by now.
        index = oci_archive.image_index(image.manifest, name)
        blobs = [(digest, blob_path(layout, digest)) for digest in (image.config, image.manifest["digest"])]
        containerd.import_archive(lambda out: oci_archive.write_archive(out, index, blobs))
    containerd.remove_images(superseded(containerd.images()))


def share_blobs(layout: Path, content_store: Path, digests: list[str]) -> None:
    """Keep one copy of a blob on disk for all stores: they are named by their content and never change.

    containerd looks for a blob's file before it writes one, so linking first also saves writing and hashing it.
    """
    for digest in digests:
        own = blob_path(content_store, digest)
        own.parent.mkdir(parents=True, exist_ok=True)
        if not own.exists():
            os.link(blob_path(layout, digest), own)


def superseded(images: Mapping[str, str]) -> list[str]:
    """Names that keep an old image alive after its tag has moved on.

    Args:
        images: name -> digest of what it names. The kubelet's side adds a name `sha256:...` to every image.
    """
    tagged = {digest for name, digest in images.items() if not name.startswith("sha256:")}
    return [name for name, digest in images.items() if name.startswith("sha256:") and digest not in tagged]


def prune(layout: Path) -> None:
    """Drop what no image of a layout names any more; the nodes' own links keep what they need."""
    named = named_manifests(layout)
    needed = {digest for name in named for digest in read_layout(layout, name).blobs}
    index = {"schemaVersion": 2, "manifests": list(named.values())}
    (layout / "index.json").write_text(json.dumps(index), encoding="utf-8")
    for blob in (layout / "blobs" / "sha256").iterdir():
        if f"sha256:{blob.name}" not in needed:
            blob.unlink()
