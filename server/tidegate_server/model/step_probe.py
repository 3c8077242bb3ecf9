"""A token computed in company and alone: do whole steps draw the same after it, with the same log-probabilities?"""

from tidegate_server.engine.batch import Batch, LoadedRunner, RequestId, SampledToken, ScheduledRequest
from tidegate_server.engine.exactness import Difference
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.errors import BadLogits
from tidegate_server.model.row_ops import num_blocks

# Prompts of one step, in tokens: short, for every row costs a pass through the weights. The second one is probed.
PROMPT_LENS = (1, 5, 2)
PROBED = 1

STEP = "a whole step"
SAMPLING = SamplingParams(max_tokens=1, top_p=0.9, logprobs=3)


def num_blocks_of_steps(block_size: int) -> int:
    """KV blocks that the steps write, from block 1 on."""
    return len(PROMPT_LENS) * _blocks_each(block_size)


def find_step_difference(runner: LoadedRunner) -> Difference | None:
    """Compute a prompt beside two others, and then its last token again as a decode alone.

    Args:
        runner: its blocks are in nobody's use.
    """
    lengths = [min(length, runner.max_model_len) for length in PROMPT_LENS]
    last = lengths[PROBED] - 1
    try:
        among = runner.run(_step(*(_tokens(runner, i, 0, length) for i, length in enumerate(lengths))))[PROBED]
        (alone,) = runner.run(_step(_tokens(runner, PROBED, last, last + 1)))
    except BadLogits as error:
        return Difference(STEP, str(error))
    if _values(among) == _values(alone):
        return None
    return Difference(STEP, "a decode alone against the same token as the end of a prompt with mates")


def _blocks_each(block_size: int) -> int:
    return num_blocks(max(PROMPT_LENS), block_size)


def _tokens(runner: LoadedRunner, number: int, start: int, stop: int) -> ScheduledRequest:
    """A request's tokens from `start` to `stop`; all have one beginning, and each its own blocks."""
    first_block = 1 + number * _blocks_each(runner.block_size)
    return ScheduledRequest(
        request_id=RequestId(f"probe-{number}"),
        start=start,
        token_ids=[7919 * (position + 1) % runner.vocab_size for position in range(start, stop)],
        block_table=range(first_block, first_block + _blocks_each(runner.block_size)),
        sampling=SAMPLING,
        seed=1,
    )


def _step(*scheduled: ScheduledRequest) -> Batch:
    return Batch(step=0, scheduled=scheduled)


def _values(token: SampledToken) -> tuple[object, ...]:
    return token.token_id, token.logprob, token.top_logprobs
