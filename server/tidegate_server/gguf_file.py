"""A GGUF file's metadata and tensor table; reads the header in a tenth of a second and maps the rest.

The `gguf` package's own reader wraps every vocabulary entry in numpy arrays and takes ten seconds for one tokenizer.
Only its constants are used here, and its arithmetic in `model/gguf_weights.py`.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from tidegate_server.errors import ModelNotFound, ModelNotSupported

MAGIC = b"GGUF"
READABLE_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32  # bytes; `general.alignment` overrides it

# A corrupt count would otherwise make the reader loop for hours before it meets the end of the file.
MAX_ENTRIES = 1 << 20

GgufScalar = str | int | float | bool
GgufValue = GgufScalar | list[str] | list[int] | list[float] | list[bool]

_SCALAR_FORMATS: Mapping[GGUFValueType, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]  # row-major, as torch says it: the file stores it the other way round
    type: GGMLQuantizationType
    offset: int  # bytes from the start of the file
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file's header; `data` maps the whole file, so that a tensor's bytes are read when they are used."""

    path: Path
    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, GgufTensor]
    data: memoryview

    def tensor_bytes(self, tensor: GgufTensor) -> memoryview:
        return self.data[tensor.offset : tensor.offset + tensor.size_bytes]


def open_gguf(path: Path) -> GgufFile:
    """Read a GGUF file's header.

    Raises:
        ModelNotFound: the file cannot be read, or it is truncated or damaged.
        ModelNotSupported: not a GGUF file, or one of a version or tensor type this reader does not know.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ModelNotSupported(f"{path} is no GGUF file: it does not start with {MAGIC.decode()}")
            # Copy on write: nothing is ever written, but torch warns about arrays that could not be.
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error
    try:
        return _parse(path, data)
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise ModelNotFound(f"{path} is truncated or damaged: its header ends too early; copy it again") from error


def _parse(path: Path, data: memoryview) -> GgufFile:
    cursor = _Cursor(data, len(MAGIC))
    version = cursor.scalar("I")
    if version not in READABLE_VERSIONS:
        raise ModelNotSupported(f"{path} has GGUF version {version}; versions 2 and 3, little-endian, are read")
    num_tensors, num_fields = cursor.count(), cursor.count()
    metadata = {cursor.string(): cursor.value(cursor.value_type()) for _ in range(num_fields)}

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelNotSupported(f"{path}: general.alignment is {alignment!r}; a positive number of bytes is expected")
    rows = [cursor.tensor_row() for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {name: _place(path, data_start, name, shape, kind, offset) for name, shape, kind, offset in rows}

    end = max((tensor.offset + tensor.size_bytes for tensor in tensors.values()), default=0)
    if end > len(data):
        raise ModelNotFound(f"{path} is truncated: {len(data)} bytes of at least {end}; copy it again")
    return GgufFile(path=path, metadata=metadata, tensors=tensors, data=data)


def _place(path: Path, data_start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
    try:
        tensor_type = GGMLQuantizationType(kind)
    except ValueError:
        raise ModelNotSupported(f"{path}: tensor {name} has type {kind}, which this reader does not know") from None
    block_len, block_bytes = GGML_QUANT_SIZES[tensor_type]
    num_values = 1
    for length in shape:
        num_values *= length
    if num_values % block_len:
        raise ModelNotFound(
            f"{path} is damaged: tensor {name} of shape {shape} does not fill its blocks; copy it again"
        )
    return GgufTensor(
        name=name,
        shape=shape,
        type=tensor_type,
        offset=data_start + offset,
        size_bytes=num_values // block_len * block_bytes,
    )


class _Cursor:
    """Walks the header; a damaged one raises `struct.error`, `IndexError`, `KeyError` or `ValueError`."""

    def __init__(self, data: memoryview, position: int) -> None:
        self.data = data
        self.position = position

    def scalar(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += struct.calcsize("<" + code)
        return int(value)

    def count(self) -> int:
        value = self.scalar("Q")
        if value > MAX_ENTRIES:
            raise ValueError(f"{value} entries")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        start, self.position = self.position, self.position + length
        if self.position > len(self.data):
            raise IndexError("string past the end")
        return str(self.data[start : self.position], "utf-8")

    def value_type(self) -> GGUFValueType:
        return GGUFValueType(self.scalar("I"))

    def value(self, kind: GGUFValueType) -> GgufValue:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is GGUFValueType.ARRAY:
            item_type = self.value_type()
            length = self.count()
            if item_type is GGUFValueType.STRING:
                return [self.string() for _ in range(length)]
            return self._numbers(item_type, length)
        return self._numbers(kind, 1)[0]

    def _numbers(self, kind: GGUFValueType, length: int) -> list[int] | list[float] | list[bool]:
        layout = f"<{length}{_SCALAR_FORMATS[kind]}"
        values = list(struct.unpack_from(layout, self.data, self.position))
        self.position += struct.calcsize(layout)
        return values

    def tensor_row(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        num_dims = self.scalar("I")
        if num_dims > 8:
            raise ValueError(f"{num_dims} dimensions")
        shape = tuple(reversed([self.scalar("Q") for _ in range(num_dims)]))
        return name, shape, self.scalar("I"), self.scalar("Q")
