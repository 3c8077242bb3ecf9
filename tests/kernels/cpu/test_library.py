"""Loading and starting the C library, and whether Python and C mean the same structs."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate_kernels.cpu import library as library_module
from tidegate_kernels.cpu import structs
from tidegate_kernels.cpu.library import LIBRARY, Library, load_library, missing_because

CPUINFO = Path("/proc/cpuinfo")
HEADER = LIBRARY.with_name("tidegate_cpu.h")

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "tg_linear": structs.TgLinear,
    "tg_gemm": structs.TgGemm,
    "tg_rms_norm": structs.TgRmsNorm,
    "tg_rope_store": structs.TgRopeStore,
    "tg_attention": structs.TgAttention,
    "tg_embed": structs.TgEmbed,
    "tg_argmax": structs.TgArgmax,
    "tg_draw_row": structs.TgDrawRow,
    "tg_draw": structs.TgDraw,
    "tg_logprobs_row": structs.TgLogprobsRow,
    "tg_logprobs": structs.TgLogprobs,
    "tg_layer": structs.TgLayer,
    "tg_model": structs.TgModel,
    "tg_step": structs.TgStep,
}
CONSTANTS = {
    "TG_PANEL": structs.PANEL,
    "TG_SPAN": structs.SPAN,
    "TG_NO_MEMORY": structs.NO_MEMORY,
    "TG_F32": structs.Dtype.F32,
    "TG_BF16": structs.Dtype.BF16,
    "TG_PACKED_F32": structs.Packing.F32,
    "TG_PACKED_BF16": structs.Packing.BF16,
    "TG_PACKED_BF16_PAIRS": structs.Packing.BF16_PAIRS,
    "TG_STORE": structs.Epilogue.STORE,
    "TG_ADD": structs.Epilogue.ADD,
    "TG_SILU_MUL": structs.Epilogue.SILU_MUL,
}
# Types of the same size must not take each other's place either.
C_NAMES = {ctypes.c_int32: "int32_t", ctypes.c_int64: "int64_t", ctypes.c_float: "float", ctypes.c_double: "double"}


def _claims() -> Iterator[str]:
    """What the header must say, as C that compiles only when it does."""
    for name, value in CONSTANTS.items():
        yield f"{name} == {value}"
    for name, struct in STRUCTS.items():
        yield f"sizeof({name}) == {ctypes.sizeof(struct)}"
        for field, kind in struct._fields_:  # type: ignore[misc] # a bit field would have three parts; there are none
            yield f"offsetof({name}, {field}) == {getattr(struct, field).offset}"
            if kind in C_NAMES:
                yield f"__builtin_types_compatible_p(__typeof__((({name} *)0)->{field}), {C_NAMES[kind]})"


def test_the_structs_are_those_of_the_header() -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler to read the header with")
    program = "\n".join(
        ["#include <stddef.h>", f'#include "{HEADER}"', *(f'_Static_assert({claim}, "");' for claim in _claims())]
    )
    argv = [compiler, "-x", "c", "-fsyntax-only", "-"]
    done = subprocess.run(argv, input=program, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(AttributeError, match="num_rows"):
        structs.TgGemm(num_rows=1)


def test_each_supported_instruction_set_can_be_chosen(library: Library) -> None:
    assert library.isa() in library.supported_isas()


def test_the_fastest_instruction_set_is_taken_where_none_is_named(loaded: Library) -> None:
    fastest = [isa for isa in loaded.supported_isas() if isa != "avx512bf16" or "AuthenticAMD" in CPUINFO.read_text()]
    assert loaded.start(None, num_threads=1, cpus=None) == fastest[-1]
    loaded.stop()
    assert loaded.isa() is None


def test_an_unknown_instruction_set_is_told_what_there_is(loaded: Library) -> None:
    with pytest.raises(ValueError, match=f"'neon' is not to be had here: .* has {', '.join(loaded.supported_isas())}$"):
        loaded.start("neon", num_threads=1, cpus=None)


@pytest.mark.parametrize(("num_threads", "cpus"), [(0, None), (2, [0])], ids=["no thread", "one CPU for two threads"])
def test_threads_and_cpus_must_fit_together(loaded: Library, num_threads: int, cpus: list[int] | None) -> None:
    with pytest.raises(ValueError, match="thread"):
        loaded.start(None, num_threads, cpus)


def test_a_missing_library_is_none_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library_module, "LIBRARY", tmp_path / "libtidegate_cpu.so")
    assert load_library() is None
    assert missing_because().startswith("libtidegate_cpu.so was not built")


def test_a_broken_library_is_none_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libtidegate_cpu.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library_module, "LIBRARY", broken)
    assert load_library() is None
    assert "cannot be loaded" in missing_because()
