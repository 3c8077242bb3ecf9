"""The one import the server uses: each op bound to its Triton kernel or to its torch reference, once, at start.

    ops = select_ops("cuda")
    log.info("kernels_selected", kernels=ops.name)
    model = Llama(config, weights, ops)  # the choice travels as a value; nothing here is global
    hidden = ops.rms_norm(hidden, weight, eps)

The docstrings of the ops stand with their definitions, in `<op>_reference.py`.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

OpsName = Literal["torch", "triton"]


class RmsNorm(Protocol):
    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


class Rope(Protocol):
    def __call__(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]: ...


class SiluMul(Protocol):
    def __call__(self, gate_up: Tensor) -> Tensor: ...


class StoreKv(Protocol):
    def __call__(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None: ...


class PagedAttention(Protocol):
    def __call__(
        self,
        query: Tensor,
        kv_cache: Tensor,
        block_table: Tensor,
        query_start: Tensor,
        context_len: Tensor,
        scale: float,
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Ops:
    """One implementation of every op."""

    name: OpsName  # what the server logs at start
    rms_norm: RmsNorm
    rope: Rope
    silu_mul: SiluMul
    store_kv: StoreKv
    paged_attention: PagedAttention


def select_ops(device_type: str) -> Ops:
    """The ops for a kind of device (`torch.device.type`): Triton kernels on "cuda", torch references on "cpu".

    Triton is imported only for "cuda": it takes seconds, and a CPU image need not hold it.

    Raises:
        ValueError: no ops for this kind of device.
        RuntimeError: the device needs Triton, and it is not installed.
    """
    match device_type:
        case "cpu":
            return _torch_ops()
        case "cuda":
            return _triton_ops()
        case _:
            raise ValueError(f"there are no kernels for device type {device_type!r}: choose 'cpu' or 'cuda'")


def _torch_ops() -> Ops:
    from tidegate_kernels.paged_attention_reference import paged_attention
    from tidegate_kernels.rms_norm_reference import rms_norm
    from tidegate_kernels.rope_reference import rope
    from tidegate_kernels.silu_mul_reference import silu_mul
    from tidegate_kernels.store_kv_reference import store_kv

    return Ops("torch", rms_norm, rope, silu_mul, store_kv, paged_attention)


def _triton_ops() -> Ops:
    try:
        import triton  # noqa: F401 - asked for here, so that its absence is told in our words
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "serving on a CUDA device needs Triton: install 'tidegate[server,gpu]', or choose the CPU"
        ) from error

    from tidegate_kernels.paged_attention import paged_attention
    from tidegate_kernels.rms_norm import rms_norm
    from tidegate_kernels.rope import rope
    from tidegate_kernels.silu_mul import silu_mul
    from tidegate_kernels.store_kv import store_kv

    return Ops("triton", rms_norm, rope, silu_mul, store_kv, paged_attention)
