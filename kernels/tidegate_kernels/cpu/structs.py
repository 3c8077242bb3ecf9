"""The structs of `tidegate_cpu.h` for ctypes, field by field; a test holds them against the header.

The header says what each field means. A field of `c_void_p` takes an address (`Tensor.data_ptr()`), and the caller
keeps what lies there alive for the length of a call. Fields that are not named at construction are zero.
"""

from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

PANEL = 16  # outputs of one panel of a packed weight
SPAN = 256  # keys that attention reduces together
NO_MEMORY = -1  # in place of a token


class Dtype(IntEnum):
    F32 = 0
    BF16 = 1


class Packing(IntEnum):
    F32 = 0
    BF16 = 1
    BF16_PAIRS = 2
    Q8_0 = 3
    Q4_0 = 4
    Q4_1 = 5
    Q4_K = 6
    Q6_K = 7


class Epilogue(IntEnum):
    STORE = 0
    ADD = 1
    SILU_MUL = 2


# `__slots__` makes a misspelt field an error; ctypes alone would take it for an attribute of Python's.


class TgLinear(Structure):
    __slots__ = ()
    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("packing", c_int32),
        ("is_halved", c_int32),
    )


class TgPart(Structure):
    __slots__ = ()
    _fields_ = (
        ("linear", POINTER(TgLinear)),
        ("source", c_void_p),
        ("first", c_int64),
        ("count", c_int64),
        ("input_stride", c_int64),
        ("output_stride", c_int64),
        ("dtype", c_int32),
        ("reserved", c_int32),
    )


class TgGemm(Structure):
    __slots__ = ()
    _fields_ = (
        ("linear", POINTER(TgLinear)),
        ("x", c_void_p),
        ("y", c_void_p),
        ("m", c_int64),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("epilogue", c_int32),
        ("y_dtype", c_int32),
    )


class TgRmsNorm(Structure):
    __slots__ = ()
    _fields_ = (
        ("x", c_void_p),
        ("rows", c_void_p),
        ("weight", c_void_p),
        ("y", c_void_p),
        ("m", c_int64),
        ("n", c_int64),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("eps", c_float),
        ("y_dtype", c_int32),
    )


class TgRopeStore(Structure):
    __slots__ = ()
    _fields_ = (
        ("qkv", c_void_p),
        ("kv_cache", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("num_tokens", c_int64),
        ("qkv_stride", c_int64),
        ("block_stride", c_int64),
        ("num_q_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("kv_dtype", c_int32),
        ("reserved", c_int32),
    )


class TgAttention(Structure):
    __slots__ = ()
    _fields_ = (
        ("query", c_void_p),
        ("out", c_void_p),
        ("kv_cache", c_void_p),
        ("block_table", c_void_p),
        ("query_start", c_void_p),
        ("context_len", c_void_p),
        ("query_stride", c_int64),
        ("out_stride", c_int64),
        ("block_stride", c_int64),
        ("table_stride", c_int64),
        ("num_requests", c_int32),
        ("num_q_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("kv_dtype", c_int32),
        ("out_dtype", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
    )


class TgEmbed(Structure):
    __slots__ = ()
    _fields_ = (
        ("embedding", POINTER(TgLinear)),
        ("token_ids", c_void_p),
        ("y", c_void_p),
        ("m", c_int64),
    )


class TgArgmax(Structure):
    __slots__ = ()
    _fields_ = (
        ("x", c_void_p),
        ("index", c_void_p),
        ("maximum", c_void_p),
        ("m", c_int64),
        ("n", c_int64),
        ("x_stride", c_int64),
    )


class TgDrawRow(Structure):
    __slots__ = ()
    _fields_ = (
        ("x", c_void_p),
        ("random", c_double),
        ("top_p", c_double),
        ("top_k", c_int64),
        ("maximum", c_float),
        ("temperature", c_float),
    )


class TgDraw(Structure):
    __slots__ = ()
    _fields_ = (
        ("rows", POINTER(TgDrawRow)),
        ("token_ids", c_void_p),
        ("m", c_int64),
        ("n", c_int64),
    )


class TgLogprobsRow(Structure):
    __slots__ = ()
    _fields_ = (
        ("x", c_void_p),
        ("token_id", c_int64),
        ("num_top", c_int64),
        ("maximum", c_float),
        ("reserved", c_int32),
    )


class TgLogprobs(Structure):
    __slots__ = ()
    _fields_ = (
        ("rows", POINTER(TgLogprobsRow)),
        ("logprobs", c_void_p),
        ("top_ids", c_void_p),
        ("top_logprobs", c_void_p),
        ("m", c_int64),
        ("n", c_int64),
        ("top_stride", c_int64),
    )


class TgLayer(Structure):
    __slots__ = ()
    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv", TgLinear * 3),
        ("attention_out", TgLinear),
        ("gate_up", TgLinear),
        ("down", TgLinear),
        ("num_qkv", c_int64),
    )


class TgModel(Structure):
    __slots__ = ()
    _fields_ = (
        ("layers", POINTER(TgLayer)),
        ("embedding", POINTER(TgLinear)),
        ("head", POINTER(TgLinear)),
        ("final_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("num_layers", c_int64),
        ("hidden_size", c_int32),
        ("num_q_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("x_dtype", c_int32),
        ("eps", c_float),
        ("scale", c_float),
    )


class TgStep(Structure):
    __slots__ = ()
    _fields_ = (
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("block_table", c_void_p),
        ("query_start", c_void_p),
        ("context_len", c_void_p),
        ("sampled_rows", c_void_p),
        ("kv_cache", c_void_p),
        ("hidden", c_void_p),
        ("normed", c_void_p),
        ("qkv", c_void_p),
        ("attended", c_void_p),
        ("gated", c_void_p),
        ("logits", c_void_p),
        ("num_tokens", c_int64),
        ("num_requests", c_int64),
        ("num_sampled", c_int64),
        ("table_stride", c_int64),
        ("block_stride", c_int64),
        ("layer_stride", c_int64),
        ("block_size", c_int32),
        ("kv_dtype", c_int32),
    )
