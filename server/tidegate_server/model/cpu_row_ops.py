"""What `cpu_decoder.CpuDecoder` computes on rows, op by op, for the exactness probe."""

from collections.abc import Iterator
from ctypes import pointer

import torch
from torch import Tensor

from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.packed_linear import DTYPES
from tidegate_kernels.cpu.structs import (
    Epilogue,
    Packing,
    TgAttention,
    TgEmbed,
    TgGemm,
    TgLinear,
    TgModel,
    TgRmsNorm,
    TgRopeStore,
)
from tidegate_server.model.row_ops import (
    ATTENTION_ROWS,
    CONTEXT_LEN,
    HEAD_ROWS,
    ROWS,
    RowOp,
    as_requests,
    num_blocks,
    random_rows,
)


def cpu_row_ops(
    library: Library, model: TgModel, x_dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int, num_positions: int
) -> Iterator[RowOp]:
    """One for each op, of products one for each shape; in the order of a layer.

    Args:
        library: started.
        x_dtype: what products read.
        num_positions: rows of the model's tables of angles.
    """
    yield _embed(library, model)
    yield _norm(library, model, x_dtype)
    yield _rope_and_store(library, model, kv_dtype, block_size, num_positions)
    yield _attention(library, model, x_dtype, kv_dtype, block_size)
    for name, (linear, epilogue) in _linears(model).items():
        yield _product(library, name, linear, epilogue, x_dtype)
    head = model.head.contents
    yield _product(library, _named("head", head), head, Epilogue.STORE, x_dtype, HEAD_ROWS)


def _linears(model: TgModel) -> dict[str, tuple[TgLinear, Epilogue]]:
    named: dict[str, tuple[TgLinear, Epilogue]] = {}
    for i in range(model.num_layers):
        layer = model.layers[i]
        for role, linear, epilogue in (
            *(("qkv", layer.qkv[part], Epilogue.STORE) for part in range(layer.num_qkv)),
            ("attention_out", layer.attention_out, Epilogue.ADD),
            ("gate_up", layer.gate_up, Epilogue.SILU_MUL),
            ("down", layer.down, Epilogue.ADD),
        ):
            named.setdefault(_named(role, linear), (linear, epilogue))
    return named


def _named(role: str, linear: TgLinear) -> str:
    return f"{role} {linear.k}x{linear.n} {Packing(linear.packing).name.lower()}"


def _product(
    library: Library, name: str, linear: TgLinear, epilogue: Epilogue, x_dtype: torch.dtype, num_rows: int = ROWS
) -> RowOp:
    x = random_rows(num_rows, linear.k).to(x_dtype)
    is_gate = epilogue is Epilogue.SILU_MUL
    num_outputs, y_dtype = (linear.n // 2, x_dtype) if is_gate else (linear.n, torch.float32)
    before = random_rows(num_rows, num_outputs) if epilogue is Epilogue.ADD else None

    def run(rows: list[int]) -> Tensor:
        some = x[rows]
        y = torch.empty(len(rows), num_outputs, dtype=y_dtype) if before is None else before[rows]
        library.run_gemm(
            TgGemm(
                linear=pointer(linear),
                x=some.data_ptr(),
                y=y.data_ptr(),
                m=len(rows),
                x_stride=linear.k,
                y_stride=num_outputs,
                epilogue=epilogue,
                y_dtype=DTYPES[y_dtype],
            )
        )
        return y

    return RowOp(name, num_rows, run)


def _embed(library: Library, model: TgModel) -> RowOp:
    embedding = model.embedding.contents
    token_ids = torch.arange(ROWS) * 7919 % embedding.n  # a prime: all over the vocabulary

    def run(rows: list[int]) -> Tensor:
        some = token_ids[rows]
        y = torch.empty(len(rows), embedding.k)
        library.run_embed(TgEmbed(embedding=model.embedding, token_ids=some.data_ptr(), y=y.data_ptr(), m=len(rows)))
        return y

    return RowOp(_named("embedding", embedding), ROWS, run)


def _norm(library: Library, model: TgModel, x_dtype: torch.dtype) -> RowOp:
    hidden_size = model.hidden_size
    x = random_rows(ROWS, hidden_size)

    def run(rows: list[int]) -> Tensor:
        some = x[rows]
        y = torch.empty(len(rows), hidden_size, dtype=x_dtype)
        library.run_rms_norm(
            TgRmsNorm(
                x=some.data_ptr(),
                weight=model.final_norm,
                y=y.data_ptr(),
                m=len(rows),
                n=hidden_size,
                x_stride=hidden_size,
                y_stride=hidden_size,
                eps=model.eps,
                y_dtype=DTYPES[x_dtype],
            )
        )
        return y

    return RowOp(f"rms_norm {hidden_size}", ROWS, run)


def _rope_and_store(
    library: Library, model: TgModel, kv_dtype: torch.dtype, block_size: int, num_positions: int
) -> RowOp:
    num_q_heads, num_kv_heads, head_dim = model.num_q_heads, model.num_kv_heads, model.head_dim
    qkv = random_rows(ROWS, (num_q_heads + 2 * num_kv_heads) * head_dim)
    cache = _cache(model, kv_dtype, block_size, ROWS)
    keys, values = cache[:, 0].view(-1, num_kv_heads, head_dim, block_size), cache[:, 1]
    slots = torch.arange(ROWS) + block_size  # the null block comes first
    positions = torch.arange(ROWS) % num_positions

    def run(rows: list[int]) -> Tensor:
        some, some_slots, some_positions = qkv[rows], slots[rows], positions[rows]
        library.run_rope_store(
            TgRopeStore(
                qkv=some.data_ptr(),
                kv_cache=cache.data_ptr(),
                cos=model.cos,
                sin=model.sin,
                positions=some_positions.data_ptr(),
                slot_mapping=some_slots.data_ptr(),
                num_tokens=len(rows),
                qkv_stride=some.stride(0),
                block_stride=cache.stride(0),
                num_q_heads=num_q_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                block_size=block_size,
                kv_dtype=DTYPES[kv_dtype],
            )
        )
        blocks, offsets = some_slots // block_size, some_slots % block_size
        stored = (keys[blocks, :, :, offsets].flatten(1), values[blocks, :, offsets].flatten(1))
        return torch.cat((some, *(part.float() for part in stored)), dim=1)

    return RowOp(f"rope and store_kv {head_dim}", ROWS, run)


def _attention(library: Library, model: TgModel, x_dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int) -> RowOp:
    q_size = model.num_q_heads * model.head_dim
    query = random_rows(ATTENTION_ROWS, q_size)
    cache = _cache(model, kv_dtype, block_size, CONTEXT_LEN)

    def run(rows: list[int]) -> Tensor:
        some, requests = query[rows], as_requests(rows, block_size)
        out = torch.empty(len(rows), q_size, dtype=x_dtype)
        library.run_attention(
            TgAttention(
                query=some.data_ptr(),
                out=out.data_ptr(),
                kv_cache=cache.data_ptr(),
                block_table=requests.block_table.data_ptr(),
                query_start=requests.query_start.data_ptr(),
                context_len=requests.context_len.data_ptr(),
                query_stride=q_size,
                out_stride=q_size,
                block_stride=cache.stride(0),
                table_stride=requests.block_table.stride(0),
                num_requests=requests.context_len.shape[0],
                num_q_heads=model.num_q_heads,
                num_kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
                block_size=block_size,
                kv_dtype=DTYPES[kv_dtype],
                out_dtype=DTYPES[x_dtype],
                scale=model.scale,
            )
        )
        return out

    name = f"attention {model.num_q_heads}/{model.num_kv_heads} heads of {model.head_dim}"
    return RowOp(name, ATTENTION_ROWS, run)


def _cache(model: TgModel, kv_dtype: torch.dtype, block_size: int, num_tokens: int) -> Tensor:
    """One layer's, for so many tokens, full of numbers; keys lie another way, see `tidegate_cpu.h`."""
    shape = (num_blocks(num_tokens, block_size) + 1, 2, model.num_kv_heads, block_size, model.head_dim)
    return random_rows(*shape).to(kv_dtype)
