"""Compile every kernel for a GPU that need not be there, and print what each needs of it, as JSON.

    python tests/kernels/compile_ahead.py 80 90 100

A script of its own, because Triton decides when a kernel is imported whether it will be compiled or interpreted, and
the test process interprets.
"""

import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from tidegate_kernels import paged_attention, rms_norm, rope, silu_mul, store_kv
from tidegate_kernels.attention_plan import SPAN

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as a launcher would launch it for one model."""

    name: str
    kernel: Any
    types: Mapping[str, str]  # of the arguments that are not constants
    constants: Mapping[str, int]
    options: Mapping[str, int]
    unaligned: tuple[str, ...] = ()  # integers and pointers not known to be multiples of 16


@dataclass(frozen=True, slots=True)
class Resources:
    """What one compiled kernel takes."""

    variant: str
    sm: int
    registers: int  # per thread
    spill_bytes: int  # stores and loads, per thread
    shared_bytes: int  # per program
    fused_multiply_adds: int  # of fp32, in the compiled text; a matrix product on fp32 is built of them


def attention_variant(dtype: str, head_dim: int, group: int) -> Variant:
    shape = paged_attention.tile_shape(head_dim, group, ELEMENT_BYTES[dtype])
    pointers = {"query_ptr": dtype, "kv_cache_ptr": dtype, "out_ptr": dtype}
    lengths = {"block_table_ptr": "i32", "query_start_ptr": "i32", "context_len_ptr": "i32"}
    strides = [
        "query_token_stride",
        "query_head_stride",
        "out_token_stride",
        "table_request_stride",
        "cache_block_stride",
        "cache_value_stride",
        "cache_head_stride",
    ]
    return Variant(
        name=f"paged_attention {dtype} head_dim={head_dim} group={group}",
        kernel=paged_attention.paged_attention_kernel,
        types={
            **{name: f"*{element}" for name, element in {**pointers, **lengths}.items()},
            "scale_log2": "fp32",
            "num_requests": "i32",
            **dict.fromkeys(strides, "i32"),
        },
        constants={
            "BLOCK_SIZE": 16,
            "HEAD_DIM": head_dim,
            "GROUP": group,
            "SPAN": SPAN,
            "BLOCK_ROWS": shape.rows,
            "BLOCK_KEYS": shape.keys,
            "BLOCK_DIM": paged_attention.padded_dim(head_dim),
        },
        options={"num_warps": shape.num_warps, "num_stages": shape.num_stages},
        unaligned=("num_requests", "table_request_stride"),
    )


def small_variants(dtype: str) -> Iterator[Variant]:
    for hidden_size in (128, 8192):
        yield Variant(
            name=f"rms_norm {dtype} hidden={hidden_size}",
            kernel=rms_norm.rms_norm_kernel,
            types={
                **dict.fromkeys(("x_ptr", "weight_ptr", "out_ptr"), f"*{dtype}"),
                **dict.fromkeys(("x_token_stride", "x_head_stride", "num_heads", "hidden_size"), "i32"),
                "eps": "fp32",
            },
            constants={"BLOCK": triton.next_power_of_2(hidden_size)},
            options={"num_warps": rms_norm.num_warps(hidden_size)},
            unaligned=("num_heads",),
        )
    yield Variant(
        name=f"rope {dtype}",
        kernel=rope.rope_kernel,
        types={
            **dict.fromkeys(("query_ptr", "key_ptr", "query_out_ptr", "key_out_ptr"), f"*{dtype}"),
            **dict.fromkeys(("cos_ptr", "sin_ptr"), "*fp32"),
            "positions_ptr": "*i64",
            **dict.fromkeys(("query_token_stride", "query_head_stride", "key_token_stride", "key_head_stride"), "i32"),
            "half_dim": "i32",
        },
        constants={
            "NUM_Q_HEADS": 32,
            "NUM_KV_HEADS": 8,
            "BLOCK_Q_HEADS": 32,
            "BLOCK_KV_HEADS": 8,
            "BLOCK_HALF": 64,
        },
        options={"num_warps": rope.NUM_WARPS},
    )
    yield Variant(
        name=f"silu_mul {dtype}",
        kernel=silu_mul.silu_mul_kernel,
        types={"gate_up_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "token_stride": "i32", "intermediate_size": "i32"},
        constants={"BLOCK": silu_mul.BLOCK},
        options={"num_warps": silu_mul.NUM_WARPS},
    )
    strides = [
        "key_token_stride",
        "key_head_stride",
        "value_token_stride",
        "value_head_stride",
        "cache_block_stride",
        "cache_value_stride",
        "cache_head_stride",
    ]
    yield Variant(
        name=f"store_kv {dtype}",
        kernel=store_kv.store_kv_kernel,
        types={
            **dict.fromkeys(("key_ptr", "value_ptr", "kv_cache_ptr"), f"*{dtype}"),
            "slot_mapping_ptr": "*i64",
            **dict.fromkeys(strides, "i32"),
            "head_dim": "i32",
        },
        constants={"BLOCK_SIZE": 16, "BLOCK_DIM": 128},
        options={"num_warps": store_kv.NUM_WARPS},
    )


def variants() -> Iterator[Variant]:
    for dtype in ("bf16", "fp32"):
        yield from small_variants(dtype)
    for head_dim, group in ((64, 3), (128, 4), (256, 2)):
        yield attention_variant("bf16", head_dim, group)
    yield attention_variant("bf16", 64, 71)  # one KV head for many: a tile as high as the group
    yield attention_variant("fp16", 128, 8)
    for head_dim in (64, 128):
        yield attention_variant("fp32", head_dim, 4)


def compile_variant(variant: Variant, sm: int) -> Resources:
    names = variant.kernel.arg_names
    aligned = [n for n, t in variant.types.items() if t != "fp32" and n not in variant.unaligned]
    source = ASTSource(
        fn=variant.kernel,
        signature={name: variant.types.get(name, "constexpr") for name in names},
        constexprs=dict(variant.constants),
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", sm, 32), options={**variant.options, "enable_fp_fusion": False}
    )
    ptx = compiled.asm["ptx"]
    registers, spill_bytes = assemble(ptx, sm)
    return Resources(
        variant=variant.name,
        sm=sm,
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=compiled.metadata.shared,
        fused_multiply_adds=len(re.findall(r"\bfma\.rn(?:\.ftz)?\.f32", ptx)),
    )


def assemble(ptx: str, sm: int) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, as Triton's own assembler counts them."""
    target = re.search(r"^\.target (\S+?),?$", ptx, re.MULTILINE)
    assert target is not None, ptx[:200]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [get_ptxas(sm).path, "-v", "--fmad=false", f"--gpu-name={target[1].rstrip(',')}"]
        said = subprocess.run(
            [*command, str(source), "-o", str(Path(folder, "kernel.cubin"))], check=True, capture_output=True, text=True
        ).stderr
    registers = re.search(r"Used (\d+) registers", said)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert registers is not None, said
    assert spills is not None, said
    return int(registers[1]), int(spills[1]) + int(spills[2])


def compile_numbered(number_and_sm: tuple[int, int]) -> Resources:
    number, sm = number_and_sm
    return compile_variant(VARIANTS[number], sm)


if __name__ == "__main__":
    VARIANTS = tuple(variants())
    work = [(number, int(sm)) for sm in sys.argv[1:] for number in range(len(VARIANTS))]
    # Forked: importing torch and Triton takes as long as compiling ten variants.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        found = tuple(pool.map(compile_numbered, work))
    sys.stdout.write(json.dumps([asdict(resources) for resources in found]))
