from tests.bench.engine.runs import engine_run, long_prompt, overload
from tidegate_bench.engine.report import to_markdown
from tidegate_bench.engine.result import AMPLE, SchedulingCost


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_a_way_to_preempt_stands_with_its_share_of_the_ample_run() -> None:
    text = to_markdown(engine_run(overload("tail", 90.0), overload(AMPLE, num_preemptions=0, most_preemptions=0)))
    assert rows(text)[2:] == [
        ["tail", "90.0", "90%", "0.12", "1", "500", "3", "64/64", "yes", "1%"],
        [AMPLE, "100.0", "100%", "0.00", "0", "500", "3", "64/64", "", "1%"],
    ]
    assert "Each keeps it: 0.12 at most on average, 1 of any one, 90% of the throughput at least." in text


def test_a_way_that_fails_is_named_above_the_table() -> None:
    text = to_markdown(engine_run(overload("tail", 70.0), overload("swap", 90.0), overload(AMPLE)))
    assert "**Not kept with tail**" in text
    assert [row[-2] for row in rows(text)[2:]] == ["**no**", "yes", ""]


def test_gaps_stand_beside_the_undisturbed_ones() -> None:
    text = to_markdown(engine_run(long_prompts=[long_prompt(2.0, 0.19, is_default=True), long_prompt(0.0, 1.0)]))
    assert rows(text)[2:] == [
        ["2 (default)", "90.0", "100.0", "150.0", "190.0", "1.90x", "27.0", "160", "yes", "1%"],
        ["none", "90.0", "100.0", "150.0", "1000.0", "10.00x", "27.0", "160", "", "1%"],
    ]
    assert "It was 1.90 times with 2 (default)." in text


def test_scheduling_is_told_in_microseconds() -> None:
    costs = [
        SchedulingCost(num_running=running, num_waiting=0, num_steps=9, scheduler_s=seconds, step_s=2 * seconds)
        for running, seconds in ((1, 20e-6), (64, 750e-6))
    ]
    text = to_markdown(engine_run(costs=costs))
    assert rows(text)[2:] == [["1", "0", "20", "40"], ["64", "0", "750", "1500"]]
    assert "The most is 1.50 ms, with 64 running and 0 waiting." in text


def test_what_was_not_measured_has_no_table() -> None:
    assert rows(to_markdown(engine_run())) == []


def test_a_run_beside_others_says_so() -> None:
    text = to_markdown(engine_run(overload("tail", others=0.3), overload(AMPLE)))
    assert "1 of 2 measurements were disturbed" in text
