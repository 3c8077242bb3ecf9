from tests.bench.kernels.runs import kernel_run, time_of
from tidegate_bench.kernels.report import to_markdown
from tidegate_bench.machine import CpuShare


def cells(text: str, first: str) -> list[str]:
    """Those of the only table row that begins with this cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    [row] = [row for row in rows if row[0] == first]
    return row


def test_a_product_is_one_line_with_a_cell_for_each_number_of_rows() -> None:
    run = kernel_run(
        time_of("down 8 → 4", data="q8_0", rows=1, ours_s=20e-6, torch_s=30e-6, moved_bytes=0, flop=10),
        time_of("down 8 → 4", data="q8_0", rows=64, ours_s=400e-6, torch_s=100e-6, moved_bytes=0, flop=100),
    )
    assert cells(to_markdown(run), "weights") == ["weights", "product", "1 row", "64 rows"]
    assert cells(to_markdown(run), "q8_0") == ["q8_0", "down 8 → 4", "20, 50%a, 1.5x", "400, 25%a, 0.2x"]


def test_another_kernel_shows_both_times_and_what_limits_it() -> None:
    run = kernel_run(time_of("rows of 8", kernel="embed", rows=3, ours_s=0.5, torch_s=1.0, moved_bytes=0, flop=250_000))
    row = cells(to_markdown(run), "embed")
    assert row == ["embed", "rows of 8", "3", "f32", "500000", "1000000", "2.0x", "250000", "50%", "arithmetic"]


def test_the_facts_say_machine_versions_and_command() -> None:
    text = to_markdown(kernel_run(time_of("qkv 4 → 8")))
    assert "- command: `python -m tidegate_bench kernels`" in text
    assert "- versions: tidegate 1.2.3, torch 2.15.0" in text
    assert "Some CPU, 2 CPUs" in text


def test_a_disturbed_run_says_so_and_a_quiet_one_does_not() -> None:
    assert "Others used 20%" in to_markdown(kernel_run(cpu=CpuShare(0.0, 0.7, 0.2, 0.0)))
    assert "Others used" not in to_markdown(kernel_run())
