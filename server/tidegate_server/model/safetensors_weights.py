"""A folder of safetensors, in one file or many."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from tidegate_kernels.cpu.packed_linear import QuantizedRows
from tidegate_kernels.cpu.structs import Packing
from tidegate_server.errors import ModelNotFound, ModelNotSupported
from tidegate_server.json_file import read_json_object
from tidegate_server.model.config import ModelConfig

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
READABLE_DTYPES = ("F64", "F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    file: safe_open
    shape: tuple[int, ...]
    dtype: str


class SafetensorsCheckpoint:
    """Satisfies `checkpoint.Checkpoint`; made by `open_safetensors`."""

    def __init__(self, folder: Path, stored: Mapping[str, _StoredTensor], config: ModelConfig) -> None:
        self._stored = stored
        self.path = folder
        self.shapes = {name: tensor.shape for name, tensor in stored.items()}
        self.ignored = _ignored(config, self.shapes)

    def values(self, name: str) -> Tensor:
        """See `Checkpoint.values`."""
        try:
            values: Tensor = self._stored[name].file.get_tensor(name)  # type: ignore[no-untyped-call] # its stub has no types
        except SafetensorError as error:
            raise _damaged(self.path, error) from error
        return values

    def packing(self, name: str) -> Packing | None:
        """See `Checkpoint.packing`: no weight is quantised."""
        return None

    def quantized(self, name: str) -> QuantizedRows:
        """See `Checkpoint.quantized`."""
        raise AssertionError(f"{name} is not quantised")


@contextmanager
def open_safetensors(folder: Path, config: ModelConfig) -> Iterator[SafetensorsCheckpoint]:
    """Open all files of a folder.

    Raises:
        ModelNotFound: a file is missing, truncated or damaged.
        ModelNotSupported: a tensor of a number format that is not read.
    """
    with ExitStack() as stack:
        stored: dict[str, _StoredTensor] = {}
        for path in weight_files(folder):
            stored |= _open(stack, path)
        for name, tensor in stored.items():
            if tensor.dtype not in READABLE_DTYPES:
                raise ModelNotSupported(
                    f"{folder}: tensor {name} is stored as {tensor.dtype}; supported: {', '.join(READABLE_DTYPES)}"
                )
        yield SafetensorsCheckpoint(folder, stored, config)


def weight_files(folder: Path) -> list[Path]:
    """The files to read: those the index lists, else the single file, else every one that is there.

    Raises:
        ModelNotFound: the index cannot be read, or lists a file that is not there.
    """
    index = folder / INDEX_FILE
    if index.exists():
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise ModelNotFound(f"{index} is damaged: its weight_map names no files; copy it again")
        names = sorted(set(weight_map.values()))
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ModelNotFound(
                f"{folder}: {len(missing)} of {len(names)} weight files are missing, such as {missing[0]}; copy all"
            )
        return [folder / name for name in names]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    return sorted(folder.glob("*.safetensors"))


def _open(stack: ExitStack, path: Path) -> dict[str, _StoredTensor]:
    try:
        file = stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        stored = {}
        for name in file.keys():  # noqa: SIM118 - not a mapping: it has no iterator
            tensor = file.get_slice(name)
            stored[name] = _StoredTensor(file, tuple(tensor.get_shape()), tensor.get_dtype())
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error
    return stored


def _damaged(path: Path, error: Exception) -> ModelNotFound:
    reason = " ".join(str(error).split())
    return ModelNotFound(f"{path} is truncated or damaged ({reason}); copy it again")


def _ignored(config: ModelConfig, names: dict[str, tuple[int, ...]]) -> set[str]:
    """A tied head stored once more, and the rotation frequencies that old checkpoints carry along."""
    ignored = {name for name in names if name.endswith("rotary_emb.inv_freq")}
    return ignored | {"lm_head.weight"} if config.tied_head else ignored
