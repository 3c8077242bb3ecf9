"""Blocks on the device and on the host for one request after another; blocks of 4 tokens."""

from collections.abc import Sequence

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.block_tables import BlockTables
from tidegate_server.engine.prefix_cache import BlockHasher, PrefixRoot
from tidegate_server.engine.request import Request
from tidegate_server.engine.sampling_params import SamplingParams

HASHER = BlockHasher(b"key")


def make_request(prompt: Sequence[int]) -> Request:
    return Request(
        request_id=RequestId("a"),
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        sampling=SamplingParams(max_tokens=4),
        seed=0,
        end_token_ids=frozenset(),
        max_total_tokens=100,
        priority=0,
        claim=0,
        arrival_s=0.0,
        cache_root=HASHER.root(PrefixRoot("rev", "float32")),
    )


def claim(tables: BlockTables, prompt: Sequence[int], step: int) -> Request:
    request = make_request(prompt)
    assert tables.try_claim(request, len(prompt), margin=0, step=step) is not None
    return request


def compute(tables: BlockTables, prompt: Sequence[int], step: int) -> Request:
    """A request whose prompt was computed in one step."""
    request = claim(tables, prompt, step)
    tables.retire(step)
    request.num_computed_tokens = len(prompt)
    tables.remember(request)
    return request


def test_a_host_block_that_a_step_is_to_read_stays_so_when_its_twin_leaves_the_device() -> None:
    tables = BlockTables(num_blocks=4, block_size=4, hasher=HASHER, prefix_caching=True, num_host_blocks=3)
    assert tables.host is not None
    for step, prompt in enumerate((range(13), range(50, 63), range(13))):  # now its three full blocks are on both
        request = compute(tables, prompt, step)
        third = request.block_table[2]
        tables.give_back(request, None)
    tables.pool.share([third])
    tables.pool.release([third])  # the last one used
    tables.give_back(claim(tables, range(80, 85), 3), None)  # the second one makes room
    tables.retire(3)

    claim(tables, range(13), 4)  # which evicts the third, beside the copy of it that step 4 will read
    assert tables.host.pool.num_pending == 2
    tables.retire(4)
    assert tables.host.pool.num_cached == 3
