"""The limit on running requests and the level of thrash, fed step by step."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate_server.engine.thrash import ThrashControl

MAX_NUM_SEQS = 16
CALM_STEPS = 32 * MAX_NUM_SEQS  # in which the limit recovers from anywhere


def calm(control: ThrashControl, num_steps: int, num_running: int = 1) -> None:
    for _ in range(num_steps):
        control.on_step(num_computed=8, num_recomputed=0, num_preemptions=0, num_running=num_running)


steps = st.lists(
    st.tuples(st.integers(0, 512), st.integers(0, 512), st.integers(0, MAX_NUM_SEQS), st.integers(0, MAX_NUM_SEQS)),
    max_size=200,
)


@given(steps)
def test_limit_and_level_keep_their_bounds_and_recover_in_calm(history: list[tuple[int, int, int, int]]) -> None:
    control = ThrashControl(MAX_NUM_SEQS)
    for step in history:
        before = control.limit
        control.on_step(*step)
        assert 1 <= control.limit <= MAX_NUM_SEQS
        assert 0.0 <= control.level <= 1.0
        assert control.limit <= before or step[2] == 0, "a preemption never raises the limit"
    calm(control, CALM_STEPS)
    assert control.limit == MAX_NUM_SEQS


def test_without_preemptions_nothing_is_ever_held_back() -> None:
    control = ThrashControl(MAX_NUM_SEQS)
    for _ in range(1000):
        control.on_step(512, 0, 0, MAX_NUM_SEQS)
        assert (control.limit, control.level) == (MAX_NUM_SEQS, 0.0)


def test_a_preemption_now_and_then_is_no_thrash() -> None:
    control = ThrashControl(MAX_NUM_SEQS)
    for _ in range(10):
        control.on_step(8, 0, 1, 15)
        calm(control, 200)
    assert control.limit == MAX_NUM_SEQS


def test_preemptions_close_together_lower_the_limit_below_those_that_ran() -> None:
    control = ThrashControl(MAX_NUM_SEQS)
    control.on_step(8, 0, 1, 7)
    assert control.limit == MAX_NUM_SEQS
    control.on_step(7, 0, 1, 7)
    assert control.limit == 7


def test_many_running_requests_may_lose_a_few_at_once() -> None:
    control = ThrashControl(256)
    control.on_step(100, 0, 8, 100)
    assert control.limit == 256
    control.on_step(100, 0, 8, 92)
    assert control.limit == 90


def test_a_burst_is_answered_once() -> None:
    control = ThrashControl(MAX_NUM_SEQS)
    control.on_step(8, 0, 3, 9)
    assert control.limit == 10
    control.on_step(8, 0, 1, 8)
    assert control.limit == 10


def test_a_calm_run_of_steps_raises_the_limit_by_one() -> None:
    control = ThrashControl(MAX_NUM_SEQS)
    control.on_step(8, 0, 3, 5)
    calm(control, 31)
    assert control.limit == 7
    calm(control, 1)
    assert control.limit == 8


def test_the_level_is_the_share_of_work_done_again() -> None:
    control = ThrashControl(MAX_NUM_SEQS)
    for _ in range(5000):
        control.on_step(num_computed=300, num_recomputed=100, num_preemptions=0, num_running=8)
    assert abs(control.level - 0.25) < 1e-6
    calm(control, 5000)
    assert control.level < 1e-6


def test_an_idle_engine_starts_afresh() -> None:
    control = ThrashControl(MAX_NUM_SEQS)
    control.on_step(8, 100, 9, 1)
    assert control.limit < MAX_NUM_SEQS
    assert control.level > 0
    control.on_step(0, 0, 0, 0)
    assert (control.limit, control.level) == (MAX_NUM_SEQS, 0.0)


def preemptions_of(num_steps: int, num_that_fit: int, control: ThrashControl | None) -> int:
    """Preemptions on an engine that always admits as many as it may, and then preempts those that do not fit."""
    total = 0
    for _ in range(num_steps):
        num_running = MAX_NUM_SEQS if control is None else control.limit
        num_preemptions = max(0, num_running - num_that_fit)
        total += num_preemptions
        if control is not None:
            control.on_step(num_running, 0, num_preemptions, num_running - num_preemptions)
    return total


@given(num_that_fit=st.integers(1, MAX_NUM_SEQS))
def test_under_lasting_pressure_preemptions_become_rare(num_that_fit: int) -> None:
    held_back = preemptions_of(3200, num_that_fit, ThrashControl(MAX_NUM_SEQS))
    assert held_back <= preemptions_of(3200, num_that_fit, None) / 20
