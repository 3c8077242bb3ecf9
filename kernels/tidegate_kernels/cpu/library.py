"""The C library of the CPU kernels, loaded into this process.

    library = load_library()
    if library is None:
        log.info("cpu_kernels_missing", reason=missing_because())
    else:
        isa = library.start(settings.cpu_isa, num_threads=8, cpus=None)

The structs that its functions take are in `structs.py`, what they mean in `tidegate_cpu.h`.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tidegate_kernels.cpu.structs import (
    TgArgmax,
    TgAttention,
    TgDraw,
    TgEmbed,
    TgGemm,
    TgLogprobs,
    TgModel,
    TgPart,
    TgRmsNorm,
    TgRopeStore,
    TgStep,
)

LIBRARY = Path(__file__).with_name("libtidegate_cpu.so")

# From the least to the most that a processor can do; each can also do those before it.
ISAS = ("avx2", "avx512", "avx512bf16")


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of the library; what takes a struct runs on the pool that `start` made, and may not run before.

    There is one pool and one choice of instruction set per process, whatever the number of these values.
    """

    run_gemm: Callable[[TgGemm], None]
    run_rms_norm: Callable[[TgRmsNorm], None]
    run_rope_store: Callable[[TgRopeStore], None]
    run_attention: Callable[[TgAttention], None]
    run_embed: Callable[[TgEmbed], None]
    run_argmax: Callable[[TgArgmax], None]
    run_draw: Callable[[TgDraw], None]
    run_logprobs: Callable[[TgLogprobs], None]
    run_model: Callable[[TgModel, TgStep], None]
    pack: Callable[[TgPart], None]
    panel_bytes: Callable[[int, int], int]
    """Memory of one panel: (`Packing`, inputs) to bytes."""
    block_inputs: Callable[[int], int]
    """What the inputs of a `Packing` are a multiple of."""
    block_bytes: Callable[[int], int]
    """Bytes of the GGUF block that a quantised `Packing` is made from; 0 for the others."""
    _start: Callable[[bytes | None, int, object], int]
    _stop: Callable[[], None]
    _isa: Callable[[], bytes | None]
    _supports: Callable[[bytes], int]

    def supported_isas(self) -> tuple[str, ...]:
        """The instruction sets that this processor and this build of the library have, the best last."""
        return tuple(isa for isa in ISAS if self._supports(isa.encode()))

    def start(self, isa: str | None, num_threads: int, cpus: Sequence[int] | None) -> str:
        """Start the pool of threads and choose the kernels; a pool that runs already ends first.

        Args:
            isa: one of `supported_isas()`; None takes the one that is fastest on this processor.
            num_threads: those that share an op, the calling one included.
            cpus: one for each thread to stay on, the calling thread's first; None lets them float.

        Returns:
            The instruction set that was chosen.

        Raises:
            ValueError: this machine lacks the instruction set, or the numbers do not fit together.
            RuntimeError: the operating system refused a thread.
        """
        supported = self.supported_isas()
        if isa is not None and isa not in supported:
            raise ValueError(f"instruction set {isa!r} is not to be had here: this machine has {_listed(supported)}")
        if num_threads < 1:
            raise ValueError(f"the CPU kernels need at least 1 thread, not {num_threads}")
        if cpus is not None and len(cpus) != num_threads:
            raise ValueError(f"{num_threads} threads need as many CPUs to stay on, not {len(cpus)}")
        pinned = None if cpus is None else (c_int * num_threads)(*cpus)
        status = self._start(None if isa is None else isa.encode(), num_threads, pinned)
        if status != 0:
            raise RuntimeError(f"the CPU kernels cannot start {num_threads} threads (tg_start gave {status})")
        chosen = self.isa()
        assert chosen is not None, "started without an instruction set"
        return chosen

    def stop(self) -> None:
        """End the threads of the pool."""
        self._stop()

    def isa(self) -> str | None:
        """The chosen instruction set; None before `start`."""
        name = self._isa()
        return None if name is None else name.decode()


def load_library() -> Library | None:
    """The library, or None where it is missing or this processor cannot run it; `missing_because` then says why."""
    loaded = _load(LIBRARY)
    return loaded if isinstance(loaded, Library) else None


def missing_because() -> str:
    """One sentence for the log on why `load_library` gave None; empty where it gave a library."""
    loaded = _load(LIBRARY)
    return loaded if isinstance(loaded, str) else ""


@cache
def _load(path: Path) -> Library | str:
    if not path.exists():
        return f"{path.name} was not built: it is for x86-64 on Linux, and building it needs a C compiler"
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        return f"{path.name} cannot be loaded: {error}"
    library = _declared(functions)
    if not library.supported_isas():
        return f"this processor has none of the instruction sets {_listed(ISAS)}"
    return library


def _declared(functions: ctypes.CDLL) -> Library:
    """Tell ctypes what each function takes and gives. A struct for a `POINTER` is passed by reference."""
    for function, struct in (
        (functions.tg_run_gemm, TgGemm),
        (functions.tg_run_rms_norm, TgRmsNorm),
        (functions.tg_run_rope_store, TgRopeStore),
        (functions.tg_run_attention, TgAttention),
        (functions.tg_run_embed, TgEmbed),
        (functions.tg_run_argmax, TgArgmax),
        (functions.tg_run_draw, TgDraw),
        (functions.tg_run_logprobs, TgLogprobs),
        (functions.tg_pack, TgPart),
    ):
        function.argtypes, function.restype = [POINTER(struct)], None
    functions.tg_run_model.argtypes, functions.tg_run_model.restype = [POINTER(TgModel), POINTER(TgStep)], None
    functions.tg_panel_bytes.argtypes, functions.tg_panel_bytes.restype = [c_int32, c_int64], c_int64
    for sizes in (functions.tg_block_inputs, functions.tg_block_bytes):
        sizes.argtypes, sizes.restype = [c_int32], c_int64
    functions.tg_start.argtypes, functions.tg_start.restype = [c_char_p, c_int, POINTER(c_int)], c_int
    functions.tg_stop.argtypes, functions.tg_stop.restype = [], None
    functions.tg_isa.argtypes, functions.tg_isa.restype = [], c_char_p
    functions.tg_supports.argtypes, functions.tg_supports.restype = [c_char_p], c_int
    return Library(
        run_gemm=functions.tg_run_gemm,
        run_rms_norm=functions.tg_run_rms_norm,
        run_rope_store=functions.tg_run_rope_store,
        run_attention=functions.tg_run_attention,
        run_embed=functions.tg_run_embed,
        run_argmax=functions.tg_run_argmax,
        run_draw=functions.tg_run_draw,
        run_logprobs=functions.tg_run_logprobs,
        run_model=functions.tg_run_model,
        pack=functions.tg_pack,
        panel_bytes=functions.tg_panel_bytes,
        block_inputs=functions.tg_block_inputs,
        block_bytes=functions.tg_block_bytes,
        _start=functions.tg_start,
        _stop=functions.tg_stop,
        _isa=functions.tg_isa,
        _supports=functions.tg_supports,
    )


def _listed(isas: Sequence[str]) -> str:
    return ", ".join(isas)
