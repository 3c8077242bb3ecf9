"""What the engine asks of a scheduler, whichever it is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from tidegate_server.engine.audit import Discrepancy
from tidegate_server.engine.batch import Batch, BlockCopies, RequestId, SampledToken
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.event_log import EventLog
from tidegate_server.engine.host_pool import HostPool
from tidegate_server.engine.messages import AddRequest, RequestOutput
from tidegate_server.engine.preemption_kind import PreemptionKind, PreemptionReason

NO_ERRORS: Final[Mapping[str, str]] = MappingProxyType({})


class StepScheduler(Protocol):
    """Holds every unfinished request and decides what each step computes. Counters count since the engine started."""

    # Requests come and go.

    def add(self, command: AddRequest, now: float) -> RequestOutput | None:
        """Queue a request; the output is its refusal when it can never run."""
        ...

    def abort(self, request_id: str, now: float, reason: str = ...) -> RequestOutput | None:
        """End a request at any moment, in flight too; None when there is no such request any more."""
        ...

    def expire(self, now: float) -> tuple[RequestOutput, ...]:
        """End those whose deadline passed while they waited; nothing of them was computed."""
        ...

    def preempt(
        self, request_id: str, now: float, reason: str, kind: PreemptionKind = PreemptionKind.RECOMPUTE
    ) -> None:
        """Take a request's blocks at any moment, where the scheduler ever takes any."""
        ...

    # A step.

    def schedule(self, now: float) -> Batch:
        """Put the next step together; its batch is empty when nobody can go on."""
        ...

    def without_lost(self, batch: Batch, failed: BlockCopies, now: float) -> Batch:
        """What of a batch can be run when some of its copies failed."""
        ...

    def update(
        self, batch: Batch, sampled: Sequence[SampledToken], now: float, errors: Mapping[str, str] = NO_ERRORS
    ) -> tuple[RequestOutput, ...]:
        """Take in what a step gave.

        Args:
            errors: by request id, for those of the batch that could not be computed.
        """
        ...

    # What is there.

    def audit(self) -> tuple[Discrepancy, ...]:
        """Recount every block and repair what can be; gives what was wrong."""
        ...

    def unfinished_ids(self) -> tuple[RequestId, ...]: ...

    def queue_time_p90_s(self, now: float) -> float: ...

    @property
    def pool(self) -> BlockPool: ...

    @property
    def host(self) -> HostPool | None: ...  # None: there is no host memory for blocks

    @property
    def events(self) -> EventLog: ...

    @property
    def has_unfinished(self) -> bool: ...

    @property
    def num_running(self) -> int: ...  # requests that hold blocks

    @property
    def num_waiting(self) -> int: ...

    @property
    def waiting_tokens(self) -> int: ...  # that waiting requests still have to compute

    @property
    def step(self) -> int: ...  # of the last batch

    @property
    def max_num_running(self) -> int: ...  # as things are; the configured limit or less

    @property
    def num_requests(self) -> int: ...  # taken in

    @property
    def num_stale_results(self) -> int: ...

    @property
    def num_preemptions(self) -> int: ...

    @property
    def preemptions(self) -> Counter[tuple[PreemptionKind, PreemptionReason]]: ...

    @property
    def thrash_level(self) -> float: ...  # share of the recent work that preemptions caused to be done again

    @property
    def prefix_miss_tokens(self) -> int: ...  # prompt tokens that the first look found nowhere

    @property
    def prefix_hit_tokens(self) -> int: ...  # prompt tokens that it found in device memory

    @property
    def prefix_host_hit_tokens(self) -> int: ...  # and in host memory

    @property
    def recomputed_tokens(self) -> int: ...  # computed again after a preemption
