import os
import subprocess
import sys
from pathlib import Path

from tidegate_bench.limits.confined import confined_argv
from tidegate_bench.limits.measure import conditions_for, decode_workload
from tidegate_bench.limits.neighbour import busy_neighbour
from tidegate_bench.limits.result import UNDISTURBED

SHOW = (sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)), os.getpid())")


def test_a_program_starts_on_its_cpus_and_keeps_the_number_of_its_process() -> None:
    first = min(os.sched_getaffinity(0))
    argv = confined_argv(SHOW, cpus=frozenset({first}))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    shown, _ = process.communicate()
    assert shown == f"[{first}] {process.pid}\n"


def test_a_program_is_in_its_group_before_it_starts(tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    argv = confined_argv((sys.executable, "-c", f"print(open({str(procs)!r}).read())"), group=tmp_path)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    shown, _ = process.communicate()
    assert shown.strip() == str(process.pid)


def test_an_unconfined_program_starts_as_it_is() -> None:
    assert confined_argv(SHOW) == list(SHOW)


def test_conditions_take_away_what_a_machine_has() -> None:
    two = {condition.name: condition for condition in conditions_for(2, [0, 1])}
    assert two[UNDISTURBED].share_left == 1.0
    assert (two["one CPU"].cpus, two["one CPU"].share_left) == (frozenset({0}), 0.5)
    assert (two["quota of 1.5 CPUs"].quota_cpus, two["quota of 1.5 CPUs"].share_left) == (1.5, 0.75)
    assert two["busy neighbour"].share_left is None  # what it took is measured
    assert [condition.name for condition in conditions_for(1, [0])] == [UNDISTURBED, "busy neighbour"]


def test_requests_that_decode_together_are_alike_and_share_no_prompt() -> None:
    requests = decode_workload(64).requests
    assert len(requests) == 64
    assert len({(len(request.prompt_token_ids), request.num_output_tokens) for request in requests}) == 1
    assert len({request.prompt_token_ids[0] for request in requests}) == 64


def test_a_neighbour_is_gone_afterwards() -> None:
    with busy_neighbour() as neighbour:
        assert len(neighbour.living()) == 1
    assert neighbour.living() == []
