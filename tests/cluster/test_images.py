"""Archives that containerd imports, and what is left out of them."""

import io
import json
import tarfile
from pathlib import Path

from tests.cluster.kube import oci_archive
from tests.cluster.kube.image_load import blob_path, prune, read_layout, share_blobs, superseded
from tests.cluster.kube.pause_image import pause_archive

NAME = "docker.io/tidegate/server:dev"


def put(layout: Path, data: bytes) -> str:
    digest = oci_archive.digest_of(data)
    path = blob_path(layout, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return digest


def read_tar(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: source.read() for member in archive if (source := archive.extractfile(member))}


def test_pause_archive_names_its_image_and_every_blob_by_content(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF")
    out = io.BytesIO()
    pause_archive(program, "localhost/pause:1")(out)
    files = read_tar(out.getvalue())
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/pause:1"
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert oci_archive.digest_of(data) == "sha256:" + name.rpartition("/")[2]
    manifest = json.loads(files["blobs/sha256/" + entry["digest"].removeprefix("sha256:")])
    config = json.loads(files["blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")])
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]


def add_image(layout: Path, name: str | None, layers: list[bytes]) -> oci_archive.Descriptor:
    config = {"digest": put(layout, b"config of " + b"".join(layers))}
    manifest = json.dumps({"config": config, "layers": [{"digest": put(layout, layer)} for layer in layers]}).encode()
    put(layout, manifest)
    descriptor = oci_archive.descriptor(oci_archive.MANIFEST_TYPE, manifest)
    named = descriptor if name is None else descriptor | {"annotations": {"org.opencontainers.image.ref.name": name}}
    index = layout / "index.json"
    entries = json.loads(index.read_text(encoding="utf-8"))["manifests"] if index.exists() else []
    index.write_text(json.dumps({"manifests": [*entries, named]}), encoding="utf-8")
    return descriptor


def test_layout_image_lists_its_layers_config_and_manifest(tmp_path: Path) -> None:
    add_image(tmp_path, "other", [b"x"])
    manifest = add_image(tmp_path, NAME, [b"torch", b"code"])
    image = read_layout(tmp_path, NAME)
    assert image.manifest == manifest
    layers = [oci_archive.digest_of(layer) for layer in (b"torch", b"code")]
    assert image.blobs == (manifest["digest"], oci_archive.digest_of(b"config of torchcode"), *layers)


def test_pruning_drops_what_only_an_unnamed_older_image_had(tmp_path: Path) -> None:
    add_image(tmp_path, None, [b"torch", b"old code"])
    add_image(tmp_path, NAME, [b"torch", b"new code"])
    prune(tmp_path)
    kept = set(read_layout(tmp_path, NAME).blobs)
    assert {f"sha256:{blob.name}" for blob in (tmp_path / "blobs" / "sha256").iterdir()} == kept
    assert len(json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))["manifests"]) == 1


def test_archive_takes_blobs_from_files_and_may_leave_some_out(tmp_path: Path) -> None:
    digest = put(tmp_path, b"new layer")
    out = io.BytesIO()
    oci_archive.write_archive(out, b"{}", [(digest, blob_path(tmp_path, digest))])
    files = read_tar(out.getvalue())
    assert files[f"blobs/sha256/{digest.removeprefix('sha256:')}"] == b"new layer"
    assert set(files) == {"oci-layout", "index.json", f"blobs/sha256/{digest.removeprefix('sha256:')}"}


def test_a_blob_is_on_disk_once_for_all_stores(tmp_path: Path) -> None:
    layout, store = tmp_path / "layout", tmp_path / "store"
    digest = put(layout, b"torch")
    share_blobs(layout, store, [digest])
    share_blobs(layout, store, [digest])
    assert blob_path(store, digest).samefile(blob_path(layout, digest))


def test_names_left_over_from_an_older_build_are_found() -> None:
    images = {NAME: "sha256:new", "sha256:config-new": "sha256:new", "sha256:config-old": "sha256:old"}
    assert superseded(images) == ["sha256:config-old"]
