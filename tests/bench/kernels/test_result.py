from tests.bench.kernels.runs import kernel_run, time_of
from tidegate_bench.kernels.result import lines


def test_the_limit_is_the_slower_of_memory_and_arithmetic() -> None:
    few, many = lines(kernel_run(time_of("few", moved_bytes=10), time_of("many", moved_bytes=10, flop=50_000_000)))
    assert (few.floor_s, few.bound) == (10.0, "memory")
    assert (many.floor_s, many.bound) == (50.0, "arithmetic")


def test_arithmetic_is_bound_by_the_fastest_product_that_could_do_it() -> None:
    [line] = lines(kernel_run(time_of("pairs", moved_bytes=0, flop=8_000_000, peaks=("float32", "bfloat16"))))
    assert line.floor_s == 4.0


def test_a_step_is_every_layers_products_and_the_head_once() -> None:
    names = ("qkv 4 → 8", "attention_out 4 → 4", "gate_up 4 → 16", "down 8 → 4")
    layer = [time_of(name, ours_s=20.0, torch_s=30.0, moved_bytes=10) for name in names]
    head = time_of("head 4 → 99", ours_s=7.0, torch_s=70.0, moved_bytes=0, flop=5_000_000)
    *_, step = lines(kernel_run(*layer, head, num_layers=3))
    assert step.what == "all of a step"
    assert step.ours_s == 3 * 4 * 20.0 + 7.0
    assert step.torch_s == 3 * 4 * 30.0 + 70.0
    assert step.floor_s == 3 * 4 * 10.0 + 5.0
    assert step.bound == "memory"


def test_no_step_is_made_of_products_of_which_some_are_missing() -> None:
    assert [line.what for line in lines(kernel_run(time_of("down 8 → 4", data="q4_k")))] == ["down 8 → 4"]


def test_products_come_first_and_then_the_other_kernels() -> None:
    run = kernel_run(time_of("rows", kernel="embed"), time_of("qkv 4 → 8"))
    assert [line.kernel for line in lines(run)] == ["gemm", "embed"]
