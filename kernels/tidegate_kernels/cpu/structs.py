"""The structs of `tidegate_cpu.h` for ctypes, field by field; a test holds them against the header.

The header says what each field means. Pointers are addresses (`Tensor.data_ptr()`), and the caller keeps what they
point to alive for the length of a call.
"""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import ClassVar

PANEL = 16  # outputs
SPAN = 256  # keys


class Dtype(IntEnum):
    F32 = 0
    BF16 = 1


class Packing(IntEnum):
    F32 = 0
    BF16 = 1
    BF16_PAIRS = 2


class Epilogue(IntEnum):
    STORE = 0
    ADD = 1
    SILU_MUL = 2


type_of_fields = list[tuple[str, type]]


