"""What it costs to have blocks again."""

from dataclasses import dataclass
from typing import Final

from tidegate_server.engine.step_time import NO_STEP, StepTimeModel


@dataclass(frozen=True, slots=True)
class ConstantCost:
    """Costs in proportion to tokens and blocks; satisfies `preemption.PreemptionCost`."""

    token_s: float = 1e-3
    block_copy_s: float = 1e-3

    def recompute_s(self, start: int, stop: int) -> float:
        return self.token_s * (stop - start)

    def copy_s(self, num_blocks: int) -> float:
        return self.block_copy_s * num_blocks


UNMEASURED: Final = ConstantCost()


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Costs by the fitted step-time model and the copy rate measured at start; satisfies `PreemptionCost`."""

    model: StepTimeModel
    block_bytes: int
    swap_bytes_per_s: float

    def recompute_s(self, start: int, stop: int) -> float:
        """What the tokens add to a step that is computed anyhow."""
        added_s = self.model.predict(NO_STEP.plus(start, stop - start)) - self.model.predict(NO_STEP)
        return added_s if added_s > 0.0 else UNMEASURED.recompute_s(start, stop)

    def copy_s(self, num_blocks: int) -> float:
        if self.swap_bytes_per_s <= 0.0:
            return UNMEASURED.copy_s(num_blocks)
        return num_blocks * self.block_bytes / self.swap_bytes_per_s
