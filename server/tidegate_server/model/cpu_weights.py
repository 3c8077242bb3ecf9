"""A checkpoint packed for the CPU kernels: each weight as its file stores it, quantised to int8, or as numbers."""

from collections.abc import Iterator, Sequence
from ctypes import pointer
from dataclasses import dataclass, field
from itertools import groupby

import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from tidegate_kernels.cpu.large_pages import LargePages
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.packed_linear import DTYPES, QuantizedRows, WeightRows, pack_linear
from tidegate_kernels.cpu.structs import Packing, TgLayer, TgLinear, TgModel
from tidegate_server.errors import InvalidSetting
from tidegate_server.model.checkpoint import Checkpoint, check_tensors
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.weights import (
    ATTENTION_NORM,
    ATTENTION_OUT,
    DOWN,
    EMBEDDING,
    FINAL_NORM,
    GATE_UP,
    HEAD,
    MLP_NORM,
    QKV,
    expected_shapes,
    layer_prefix,
)
from tidegate_server.settings import Quantization

SUPPORTED_DTYPES = tuple(DTYPES)


@dataclass(slots=True)
class CpuWeights:
    """What the library goes through in a step, and the memory that it points to."""

    model: TgModel  # without the rotation tables, which depend on the longest request
    x_dtype: torch.dtype  # what products read
    packings: set[Packing] = field(default_factory=set)
    kept: list[object] = field(default_factory=list)

    def vector(self, values: Tensor) -> int:
        """The address of these values in fp32."""
        fp32 = values.float().contiguous()
        self.kept.append(fp32)
        return fp32.data_ptr()


def pack_weights(
    library: Library, checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype, quantization: Quantization
) -> CpuWeights:
    """Pack a checkpoint, one projection after the other; runs on the library's pool.

    A quantised weight computes in fp32 what its de-quantised numbers would, to the bit, whatever the dtype.

    Args:
        library: started.
        dtype: of weights that are not quantised; one of `SUPPORTED_DTYPES`.

    Raises:
        InvalidSetting: there is nothing left to quantise.
        ModelNotFound: the checkpoint is damaged.
        ModelNotSupported: its tensors are not those of the config, or of a number format that is not read.
    """
    expected = expected_shapes(config)
    check_tensors(checkpoint, expected)
    matrices = [name for name, shape in expected.items() if len(shape) == 2]
    stored = {packing for name in matrices if (packing := checkpoint.packing(name)) is not None}
    if quantization is Quantization.INT8 and stored:
        raise InvalidSetting(
            "--quantization",
            f"int8 was asked for, but {checkpoint.path} holds {_listed(stored)} already: use auto or none",
        )
    is_quantized = quantization is Quantization.INT8 or (quantization is Quantization.AUTO and bool(stored))
    return _Packer(library, checkpoint, config, dtype, quantization, is_quantized).pack()


class _Packer:
    def __init__(
        self,
        library: Library,
        checkpoint: Checkpoint,
        config: ModelConfig,
        dtype: torch.dtype,
        quantization: Quantization,
        is_quantized: bool,
    ) -> None:
        self._library = library
        self._checkpoint = checkpoint
        self._config = config
        self._quantization = quantization
        self._packing = _packing_of_numbers(library, dtype, config, is_quantized)
        # Pairs of bfloat16 are multiplied by pairs of bfloat16.
        x_dtype = torch.bfloat16 if self._packing is Packing.BF16_PAIRS else torch.float32
        self._weights = CpuWeights(TgModel(), x_dtype)
        self._memory = LargePages()

    def pack(self) -> CpuWeights:
        config, weights = self._config, self._weights
        layers = (TgLayer * config.num_layers)(*(self._layer(index) for index in range(config.num_layers)))
        embedding = pointer(self._linear([EMBEDDING]))
        weights.model = TgModel(
            layers=layers,
            embedding=embedding,
            head=embedding if config.tied_head else pointer(self._linear([HEAD])),
            final_norm=weights.vector(self._checkpoint.values(FINAL_NORM)),
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            num_q_heads=config.num_q_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            x_dtype=DTYPES[weights.x_dtype],
            eps=config.rms_norm_eps,
            scale=config.attention_scale,
        )
        return weights

    def _layer(self, index: int) -> TgLayer:
        prefix = layer_prefix(index)
        qkv = list(self._linears(prefix, QKV))
        return TgLayer(
            attention_norm=self._weights.vector(self._checkpoint.values(prefix + ATTENTION_NORM)),
            mlp_norm=self._weights.vector(self._checkpoint.values(prefix + MLP_NORM)),
            qkv=(TgLinear * len(QKV))(*qkv),
            num_qkv=len(qkv),
            attention_out=self._fused(prefix, ATTENTION_OUT),
            gate_up=self._fused(prefix, GATE_UP, is_halved=True),
            down=self._fused(prefix, DOWN),
        )

    def _linears(self, prefix: str, modules: Sequence[str]) -> Iterator[TgLinear]:
        """Neighbours of one packing together."""
        for _, run in groupby(modules, key=lambda module: self._packing_of(f"{prefix}{module}.weight")):
            yield self._fused(prefix, list(run))

    def _fused(self, prefix: str, modules: Sequence[str], *, is_halved: bool = False) -> TgLinear:
        names = [f"{prefix}{module}.bias" for module in modules]
        biases = [self._checkpoint.values(name).float() for name in names if name in self._checkpoint.shapes]
        bias = torch.cat(biases) if biases else None
        return self._linear([f"{prefix}{module}.weight" for module in modules], bias, is_halved=is_halved)

    def _linear(self, names: Sequence[str], bias: Tensor | None = None, *, is_halved: bool = False) -> TgLinear:
        packings = {self._packing_of(name) for name in names}
        # One projection has one packing: where a file mixes them, as numbers.
        packing = packings.pop() if len(packings) == 1 else self._packing
        rows = [self._rows(name, packing) for name in names]
        packed = pack_linear(self._library, rows, bias, packing, is_halved=is_halved, memory=self._memory)
        self._weights.kept.append(packed)
        self._weights.packings.add(packing)
        return packed.struct

    def _packing_of(self, name: str) -> Packing:
        if self._quantization is Quantization.AUTO:
            return self._checkpoint.packing(name) or self._packing
        num_inputs = self._checkpoint.shapes[name][1]
        can_be_int8 = num_inputs % self._library.block_inputs(Packing.Q8_0) == 0
        return Packing.Q8_0 if self._quantization is Quantization.INT8 and can_be_int8 else self._packing

    def _rows(self, name: str, packing: Packing) -> WeightRows:
        if self._quantization is Quantization.AUTO and self._checkpoint.packing(name) is packing:
            return self._checkpoint.quantized(name)
        values = self._checkpoint.values(name)
        if packing is Packing.Q8_0:
            return to_int8(values)
        return values if values.dtype in SUPPORTED_DTYPES else values.float()


def to_int8(values: Tensor) -> QuantizedRows:
    """Groups of 32 inputs with a scale each, symmetric about zero: GGUF's Q8_0.

    Args:
        values: `[outputs, inputs]`, any float dtype; inputs a multiple of 32.
    """
    blocks = quantize(values.float().numpy(), GGMLQuantizationType.Q8_0)
    return QuantizedRows(torch.from_numpy(blocks), Packing.Q8_0, values.shape[1])


def _packing_of_numbers(library: Library, dtype: torch.dtype, config: ModelConfig, is_quantized: bool) -> Packing:
    assert dtype in SUPPORTED_DTYPES, f"the CPU library has no {dtype}"
    if dtype == torch.float32:
        return Packing.F32
    num_inputs = (config.hidden_size, config.q_size, config.intermediate_size)
    # Quantised weights are multiplied in fp32, and all products of a model read the same.
    if library.isa() == "avx512bf16" and not is_quantized and all(num % 2 == 0 for num in num_inputs):
        return Packing.BF16_PAIRS
    return Packing.BF16


def _listed(packings: set[Packing]) -> str:
    return " and ".join(sorted(packing.name for packing in packings))
