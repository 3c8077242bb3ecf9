"""What every checkpoint format gives: tensors under transformers' names."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from tidegate_kernels.cpu.packed_linear import QuantizedRows
from tidegate_kernels.cpu.structs import Packing
from tidegate_server.errors import ModelNotSupported


class Checkpoint(Protocol):
    """An opened checkpoint; a tensor is read when it is asked for."""

    @property
    def path(self) -> Path:
        """For the words of an error."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of all tensors; a weight is `[outputs, inputs]`."""
        ...

    @property
    def ignored(self) -> Collection[str]:
        """Names of tensors that may be there and are not read."""
        ...

    def values(self, name: str) -> Tensor:
        """A tensor's numbers, in any float dtype.

        Raises:
            ModelNotFound: the file is damaged.
            ModelNotSupported: it is stored in a format that is not read.
        """
        ...

    def packing(self, name: str) -> Packing | None:
        """The format that a weight is stored in, where the CPU kernels compute with it as it is."""
        ...

    def quantized(self, name: str) -> QuantizedRows:
        """A weight as it is stored; for those with a `packing`."""
        ...


def check_tensors(checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]]) -> None:
    """See that a checkpoint's tensors are exactly the decoder's.

    Raises:
        ModelNotSupported: some are missing, have another shape, or nobody knows what to do with them.
    """
    source, shapes = checkpoint.path, checkpoint.shapes
    if missing := [name for name in expected if name not in shapes]:
        raise ModelNotSupported(f"{source}: tensors are missing: {_listed(missing)}")
    for name, shape in expected.items():
        if shape != shapes[name]:
            raise ModelNotSupported(
                f"{source}: tensor {name} has shape {list(shapes[name])}; the config asks for {list(shape)}"
            )
    if unexpected := [name for name in shapes if name not in expected and name not in checkpoint.ignored]:
        raise ModelNotSupported(f"{source}: tensors that this decoder does not use: {_listed(unexpected)}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
