from tests.bench.limits.runs import SMALL, confined, limits_run
from tidegate_bench.limits.report import to_markdown
from tidegate_bench.limits.result import PythonShare


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_every_bound_is_a_row_that_says_whether_it_is_kept() -> None:
    python = PythonShare(1, num_steps=90, step_s=0.010, outside_s=0.002, api_cpu=0.03, others=0.0)
    text = to_markdown(limits_run(ready_s=(5.0,), memory=SMALL, python=[python]))
    assert [(row[1], row[2], row[3]) for row in rows(text)[2:]] == [
        ("5.0 s", "6 s", "yes"),
        ("1.00 or 1.00 GB", "1.2 GB", "yes"),
        ("20.0%: 2.00 of 10.0 ms", "10%", "**no**"),
    ]
    assert "the API process took 3% of the CPUs (90 steps seen)" in text


def test_conditions_stand_below_the_undisturbed_run_with_their_ratio() -> None:
    text = to_markdown(limits_run(confined(), confined("one CPU", 45.0, share_left=0.5, others=0.04)))
    assert rows(text)[2:] == [
        ["W1", "undisturbed", "100.0", "", "100%", "", "", "1%"],
        ["W1", "one CPU", "45.0", "45%", "50%", "40%", "yes", "4%"],
    ]


def test_what_cannot_be_measured_here_says_why() -> None:
    text = to_markdown(limits_run(confined(), not_measured=["quota of 1.5 CPUs: no controller"]))
    assert "Not measured here: quota of 1.5 CPUs: no controller" in text


def test_only_the_neighbour_we_started_may_be_busy() -> None:
    disturbed = limits_run(confined(), confined("one CPU", others=0.3), ready_s=(5.0,))
    assert "1 of 3 measurements were disturbed" in to_markdown(disturbed)
    assert "disturbed**" not in to_markdown(limits_run(confined(), confined("one CPU")))
