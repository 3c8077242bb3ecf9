"""What one step computes, and what it gave: built by the scheduler, read by the runner, changed by nobody."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NewType, Protocol

from tidegate_server.engine.exactness import Exactness
from tidegate_server.engine.sampling_params import SamplingParams

RequestId = NewType("RequestId", str)


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: compute `token_ids` from position `start` on.

    Block ids count from 1: block 0 is the null block, which padding points to. The block table is append-only: what a
    step reads of it never changes, though it may grow while the step runs.
    """

    request_id: RequestId
    start: int
    token_ids: Sequence[int]  # many while prefilling, one while decoding
    block_table: Sequence[int]  # block ids in position order, the new tokens' blocks included
    sampling: SamplingParams | None  # None: the step does not reach the last known token, so nothing is drawn
    seed: int  # of the draw; a request without a seed of its own got one when it arrived
    num_output_tokens: int = 0  # drawn for this request so far; `min_tokens` looks at it
    epoch: int = 0  # of this hold on blocks; a result that comes back for an older one is dropped

    @property
    def num_new_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def stop(self) -> int:
        """The position after the last one computed: where a drawn token goes."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block's contents, over all layers, from one place to another."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Copies that come before a step's forward pass, in this order: what is copied from may be copied to after it."""

    swap_out: tuple[BlockCopy, ...] = ()  # device block -> host block
    within: tuple[BlockCopy, ...] = ()  # device block -> device block
    swap_in: tuple[BlockCopy, ...] = ()  # host block -> device block

    def __bool__(self) -> bool:
        return bool(self.swap_out or self.swap_in or self.within)


NO_COPIES: Final = BlockCopies()


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass, and the block copies that it needs first."""

    step: int
    scheduled: tuple[ScheduledRequest, ...]
    preempted: tuple[RequestId, ...] = ()
    copies: BlockCopies = NO_COPIES


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token drawn for one request of a batch."""

    request_id: RequestId
    token_id: int
    logprob: float | None = None  # natural logarithm; None when the request asks for none
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), most probable first


class Runner(Protocol):
    """Runs one batch; the engine loop knows no more of the model than this."""

    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        """One forward pass; one token for each scheduled request with `sampling`, in the batch's order.

        Running a batch again, whole or in parts, gives the same tokens and the same cache contents.

        Raises:
            BadLogits: one request's logits are no numbers; the others' results are lost with the step.
            OutOfMemory: for this batch; a smaller one may run.
            UnpreparedRequest: one request could not be prepared; the others are sound.
            RunnerBroken: no batch can run any more; the engine process gives up.
            Exception: anything else fails the requests that fail when run alone.
        """
        ...

    def copy_blocks(self, copies: BlockCopies) -> BlockCopies:
        """Start the copies of a batch, before it runs: all that its forward pass reads and writes comes after them.

        `run` returns only once they are done.

        Returns:
            Those that failed, whose targets hold anything. A copy that reads such a target has failed too.

        Raises:
            RunnerBroken: no batch can run any more.
        """
        ...


class LoadedRunner(Runner, Protocol):
    """A runner with its weights and cache in place, and what the engine must know of them."""

    @property
    def max_model_len(self) -> int: ...  # tokens, prompt and output together

    @property
    def lowered_from(self) -> int | None: ...  # the model's own context, when the KV blocks could not hold it

    @property
    def num_kv_blocks(self) -> int: ...  # usable ones, ids 1 to this number: the null block is not counted

    @property
    def num_host_blocks(self) -> int: ...  # ids 1 to this number; 0: no host memory for blocks

    @property
    def block_size(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...  # of one block over all layers

    @property
    def swap_bytes_per_s(self) -> float: ...  # between device and host, of the slower way; 0: no host memory for blocks

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def device(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def kernels(self) -> str: ...  # "cpu-" and the instruction set of the kernels in C, "torch" or "triton"

    @property
    def exactness(self) -> Exactness | None: ...  # None: not probed


class RunnerBroken(Exception):
    """The device or its context is lost: trying again, or with other requests, cannot help."""
