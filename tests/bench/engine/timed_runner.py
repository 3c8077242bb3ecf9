"""A runner that computes nothing and takes its time by a clock of its own."""

from dataclasses import dataclass, field

from tidegate_bench.engine.idle_runner import IdleRunner
from tidegate_server.engine.batch import Batch, SampledToken


@dataclass(slots=True)
class StepClock:
    """Stands still between steps."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRunner(IdleRunner):
    """A step takes 10 ms, and 1 ms more for each token."""

    clock: StepClock = field(default_factory=StepClock)

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        self.clock.now_s += 0.010 + 0.001 * sum(share.num_new_tokens for share in batch.scheduled)
        return IdleRunner.run(self, batch)
