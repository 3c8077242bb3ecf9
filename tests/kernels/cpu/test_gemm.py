"""Products with packed weights against fp64, and against themselves: a row has the same bits in any company."""

import math
from ctypes import pointer

import pytest
import torch
from torch import Tensor

from tests.kernels.cpu.weights import QUANTIZED, quantized_rows
from tests.kernels.tolerances import assert_agrees
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.packed_linear import PackedLinear, pack_linear
from tidegate_kernels.cpu.structs import Dtype, Epilogue, Packing, TgGemm

NUMBERS = [Packing.F32, Packing.BF16, Packing.BF16_PAIRS]
# One row, an odd number, either side of the tallest tiles of every instruction set, and several tiles.
ROWS = (1, 2, 3, 4, 6, 7, 14, 15, 29)
# One output, either side of a panel and of the widest group of panels.
OUTPUTS = (1, 16, 17, 47, 64, 66)


def skip_without_pairs(library: Library, packing: Packing) -> None:
    if packing is Packing.BF16_PAIRS and library.isa() != "avx512bf16":
        pytest.skip(f"{library.isa()} does not multiply pairs of bfloat16")


def multiply(
    library: Library,
    linear: PackedLinear,
    x: Tensor,
    epilogue: Epilogue = Epilogue.STORE,
    y_dtype: torch.dtype = torch.float32,
    residual: Tensor | None = None,
) -> Tensor:
    """What the kernel makes of rows `[rows, inputs]`; what it is to write holds NaN before, or the residual stream."""
    x = x.bfloat16() if linear.struct.packing == Packing.BF16_PAIRS else x.float()
    x = torch.nn.functional.pad(x, (0, 3))  # rows lie apart
    num_outputs = linear.struct.n // 2 if epilogue is Epilogue.SILU_MUL else linear.struct.n
    y = torch.full((len(x), num_outputs + 5), torch.nan, dtype=y_dtype)
    if residual is not None:
        y[:, :num_outputs] = residual
    library.run_gemm(
        TgGemm(
            linear=pointer(linear.struct),
            x=x.data_ptr(),
            y=y.data_ptr(),
            m=len(x),
            x_stride=x.stride(0),
            y_stride=y.stride(0),
            epilogue=epilogue,
            y_dtype=Dtype.BF16 if y_dtype == torch.bfloat16 else Dtype.F32,
        )
    )
    assert y[:, num_outputs:].isnan().all(), "written past a row's end"
    return y[:, :num_outputs]


def weight_of(num_outputs: int, num_inputs: int, packing: Packing) -> Tensor:
    weight = torch.randn(num_outputs, num_inputs)
    return weight if packing is Packing.F32 else weight.bfloat16()


def rows_of(num_rows: int, num_inputs: int) -> Tensor:
    """Random rows whose products are about one."""
    return torch.randn(num_rows, num_inputs) / math.sqrt(num_inputs)


def rows_read(x: Tensor, packing: Packing) -> Tensor:
    """The rows as the product sees them."""
    return x.bfloat16() if packing is Packing.BF16_PAIRS else x


@pytest.mark.parametrize("packing", NUMBERS)
@pytest.mark.parametrize("num_inputs", [2, 34, 576])
def test_products_agree_with_fp64(library: Library, packing: Packing, num_inputs: int) -> None:
    skip_without_pairs(library, packing)
    for num_outputs in OUTPUTS:
        weight, bias = weight_of(num_outputs, num_inputs, packing), torch.randn(num_outputs)
        linear = pack_linear(library, [weight], bias, packing)
        for num_rows in ROWS:
            x = rows_of(num_rows, num_inputs)
            expected = rows_read(x, packing).double() @ weight.double().t() + bias
            assert_agrees(multiply(library, linear, x), expected.float())


@pytest.mark.parametrize("packing", NUMBERS)
def test_an_odd_number_of_inputs_is_served(library: Library, packing: Packing) -> None:
    if packing is Packing.BF16_PAIRS:
        with pytest.raises(ValueError, match="33 inputs are no multiple of 2, as BF16_PAIRS needs"):
            pack_linear(library, [torch.randn(4, 33)], None, packing)
        return
    weight, x = weight_of(20, 33, packing), rows_of(5, 33)
    expected = (x.double() @ weight.double().t()).float()
    assert_agrees(multiply(library, pack_linear(library, [weight], None, packing), x), expected)


@pytest.mark.parametrize("packing", [*NUMBERS, *QUANTIZED])
def test_a_row_has_the_same_bits_in_any_company(library: Library, packing: Packing) -> None:
    skip_without_pairs(library, packing)
    num_inputs = 512
    if packing in QUANTIZED:
        rows, _ = quantized_rows(packing, 83, num_inputs)
        linear = pack_linear(library, [rows], None, packing)
    else:
        linear = pack_linear(library, [weight_of(83, num_inputs, packing)], None, packing)
    x = torch.randn(70, num_inputs)
    together = multiply(library, linear, x)
    for num_rows in (*ROWS, 43):
        first = 70 - num_rows
        assert torch.equal(multiply(library, linear, x[first:]), together[first:]), f"{num_rows} rows"
    assert torch.equal(multiply(library, linear, x.flip(0)), together.flip(0))


@pytest.mark.parametrize("packing", QUANTIZED)
def test_quantised_weights_give_the_bits_of_their_numbers(library: Library, packing: Packing) -> None:
    for num_outputs in OUTPUTS:
        rows, numbers = quantized_rows(packing, num_outputs, 512)
        bias = torch.randn(num_outputs)
        quantized = pack_linear(library, [rows], bias, packing)
        plain = pack_linear(library, [numbers], bias, Packing.F32)
        for num_rows in ROWS:
            x = torch.randn(num_rows, 512)
            assert torch.equal(multiply(library, quantized, x), multiply(library, plain, x))


@pytest.mark.parametrize("packing", [*NUMBERS, *QUANTIZED])
def test_sums_are_added_to_what_is_there(library: Library, packing: Packing) -> None:
    skip_without_pairs(library, packing)
    weights = [quantized_rows(packing, 40, 256)[0] if packing in QUANTIZED else weight_of(40, 256, packing)]
    linear = pack_linear(library, weights, torch.randn(40), packing)
    for num_rows in ROWS:
        x, residual = torch.randn(num_rows, 256), torch.randn(num_rows, 40)
        added = multiply(library, linear, x, Epilogue.ADD, residual=residual)
        assert torch.equal(added, residual + multiply(library, linear, x))


@pytest.mark.parametrize("packing", [*NUMBERS, *QUANTIZED])
@pytest.mark.parametrize("num_outputs", [2, 32, 34, 94, 130])
@pytest.mark.parametrize("y_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gate_and_up_become_silu_times_up(
    library: Library, packing: Packing, num_outputs: int, y_dtype: torch.dtype
) -> None:
    skip_without_pairs(library, packing)
    if packing in QUANTIZED:
        rows, weight = quantized_rows(packing, num_outputs, 256)
        linear = pack_linear(library, [rows], bias := torch.randn(num_outputs), packing, is_halved=True)
    else:
        weight = weight_of(num_outputs, 256, packing)
        gate, up = weight.chunk(2)
        linear = pack_linear(library, [gate, up], bias := torch.randn(num_outputs), packing, is_halved=True)
    for num_rows in ROWS:
        x = rows_of(num_rows, 256)
        gate, up = (rows_read(x, packing).double() @ weight.double().t() + bias).chunk(2, dim=1)
        expected = (torch.nn.functional.silu(gate) * up).to(y_dtype)
        assert_agrees(multiply(library, linear, x, Epilogue.SILU_MUL, y_dtype), expected)


@pytest.mark.parametrize("packing", NUMBERS)
def test_parts_of_any_layout_make_one_weight(library: Library, packing: Packing) -> None:
    skip_without_pairs(library, packing)
    weight = weight_of(60, 64, packing)
    whole = pack_linear(library, [weight], None, packing)
    transposed = weight[19:43].t().contiguous().t()
    apart = torch.nn.functional.pad(weight[43:], (0, 5))[:, :64]
    assert torch.equal(pack_linear(library, [weight[:19], transposed, apart], None, packing).weight, whole.weight)


def test_no_rows_give_no_rows(library: Library) -> None:
    linear = pack_linear(library, [torch.randn(20, 8)], None, Packing.F32)
    assert multiply(library, linear, torch.empty(0, 8)).shape == (0, 20)


def test_what_cannot_be_packed_is_refused(library: Library) -> None:
    rows, _ = quantized_rows(Packing.Q8_0, 4, 64)
    with pytest.raises(ValueError, match="48 inputs are no multiple of 32, as Q8_0 needs"):
        pack_linear(library, [torch.randn(4, 48)], None, Packing.Q8_0)
    with pytest.raises(ValueError, match=r"numbers of torch\.float32 do not pack as Q8_0"):
        pack_linear(library, [torch.randn(4, 64)], None, Packing.Q8_0)
    with pytest.raises(ValueError, match="68 bytes of Q8_0 do not pack as 64 inputs of Q4_0"):
        pack_linear(library, [rows], None, Packing.Q4_0)
    with pytest.raises(ValueError, match=r"parts of \[64, 32\] inputs are no one weight"):
        pack_linear(library, [rows, torch.randn(4, 32)], None, Packing.Q8_0)
    with pytest.raises(ValueError, match="5 outputs have no halves"):
        pack_linear(library, [torch.randn(5, 32)], None, Packing.F32, is_halved=True)
    with pytest.raises(ValueError, match=r"numbers of torch\.float16 do not pack as F32"):
        pack_linear(library, [torch.randn(4, 32).half()], None, Packing.F32)
