"""Everything that can befall requests, at random and with a tiny pool: everybody gets what they would get alone."""

import os
import random
from collections import Counter, deque
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from tests.server.engine.counting_runner import CopyDirection, CountingRunner
from tests.server.engine.driving import add_request, tokens_alone
from tidegate_server.engine.batch import Batch, BlockCopy, SampledToken
from tidegate_server.engine.block_pool import BlockPool
from tidegate_server.engine.core import scheduler_config
from tidegate_server.engine.messages import AddRequest, FinishReason, RequestOutput
from tidegate_server.engine.preemption_kind import PreemptionKind
from tidegate_server.engine.request import Request, is_running
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.scheduler import Scheduler
from tidegate_server.engine.step_time import StepTimeModel, shape_of
from tidegate_server.settings import EngineSettings, Fairness, PreemptionMode, PreemptionPolicy

NUM_BLOCKS = 9
NUM_BLOCKS_OF_A_FULL_POOL = 7  # one request alone may need all of them
MAX_MODEL_LEN = 30
EOS = (3,)
MAX_IN_FLIGHT = 3
MAX_AGE_S = 60.0  # a tick of the machine is a second

# Rule applications of one run: examples times steps. The nightly run makes ten times as many.
NUM_EXAMPLES = 5_000 if os.environ.get("TIDEGATE_NIGHTLY") else 500
NUM_STEPS = 45


def make_runner(num_host_blocks: int = 0, num_blocks: int = NUM_BLOCKS) -> CountingRunner:
    return CountingRunner(
        num_kv_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=40,
        eos_token_ids=EOS,
        mixes=True,
    )


@cache
def alone(prompt: tuple[int, ...], max_tokens: int, seed: int, min_tokens: int, num_blocks: int) -> list[int]:
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed, min_tokens=min_tokens)
    return tokens_alone(add_request("alone", prompt, sampling=sampling), make_runner(num_blocks=num_blocks))


class SchedulerMachine(RuleBasedStateMachine):
    """Steps may overlap; results come back in order, at any time later."""

    ids = Bundle("ids")

    @initialize(
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.sampled_from([1, 2, 5, 16, 64]),
        prefix_caching=st.booleans(),
        num_host_blocks=st.sampled_from([0, 0, 3, 12]),
        mode=st.sampled_from(PreemptionMode),
        policy=st.sampled_from(PreemptionPolicy),
        failing=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        num_blocks=st.sampled_from([NUM_BLOCKS, NUM_BLOCKS_OF_A_FULL_POOL]),
        fairness=st.sampled_from(Fairness),
        max_queued_requests=st.sampled_from([None, None, 2]),
        step_time_target=st.sampled_from([0.0, 1.5]),
    )
    def start(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_caching: bool,
        num_host_blocks: int,
        mode: PreemptionMode,
        policy: PreemptionPolicy,
        failing: float,
        num_blocks: int,
        fairness: Fairness,
        max_queued_requests: int | None,
        step_time_target: float,
    ) -> None:
        self.runner = make_runner(num_host_blocks, num_blocks)
        draw = random.Random(1)

        def copy_fails(direction: CopyDirection, copy: BlockCopy) -> bool:
            return draw.random() < failing

        self.runner.copy_fails = copy_fails
        config = scheduler_config(
            self.runner,
            EngineSettings(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                prefix_caching=prefix_caching,
                preemption_mode=mode,
                preemption_policy=policy,
                max_queue_age_s=MAX_AGE_S,
                fairness=fairness,
                max_queued_requests=max_queued_requests,
                step_time_target=step_time_target,
            ),
            "rev",
        )
        self.step_time = StepTimeModel()
        self.scheduler = Scheduler(config, hash_key=b"key", step_time=self.step_time)
        self.config = config
        self.now = 0.0
        self.commands: dict[str, AddRequest] = {}
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.in_flight: deque[tuple[Batch, tuple[SampledToken, ...]]] = deque()

    @rule(
        target=ids,
        family=st.integers(0, 1),
        length=st.integers(1, MAX_MODEL_LEN - 1),
        max_tokens=st.integers(1, 20),
        seed=st.integers(0, 1),
        priority=st.integers(0, 2),
        min_tokens=st.sampled_from([0, 0, 5]),
        salt=st.sampled_from(["", "", "other"]),
        tenant=st.sampled_from(["", "", "a", "b"]),
        patience_s=st.sampled_from([None, None, 10.0]),
    )
    def add(
        self,
        family: int,
        length: int,
        max_tokens: int,
        seed: int,
        priority: int,
        min_tokens: int,
        salt: str,
        tenant: str,
        patience_s: float | None,
    ) -> str:
        prompt = [family * 10 + position % 7 for position in range(length)]  # long common prefixes
        sampling = SamplingParams(max_tokens=max_tokens, seed=seed, min_tokens=min_tokens)
        command = add_request(self.new_id(), prompt, priority=priority, cache_salt=salt, sampling=sampling)
        deadline_s = None if patience_s is None else self.now + patience_s
        return self.submit(structs.replace(command, tenant=tenant, deadline_s=deadline_s))

    @rule(leader_id=ids, seed=st.integers(0, 3), max_tokens=st.integers(1, 20))
    def add_another_choice(self, leader_id: str, seed: int, max_tokens: int) -> None:
        leader = self.commands[leader_id]
        sampling = SamplingParams(max_tokens=max_tokens, seed=seed, choice=1)
        self.submit(structs.replace(leader, request_id=self.new_id(), sampling=sampling, leader_id=leader_id))

    def new_id(self) -> str:
        return f"r{len(self.commands)}"

    def submit(self, command: AddRequest) -> str:
        command = structs.replace(command, arrival_s=self.tick())
        self.commands[command.request_id] = command
        self.keep(self.scheduler.add(command, self.now))
        return command.request_id

    @rule(request_id=ids)
    def abort(self, request_id: str) -> None:
        self.keep(self.scheduler.abort(request_id, self.tick()))

    @rule(request_id=ids, kind=st.sampled_from(PreemptionKind))
    def preempt(self, request_id: str, kind: PreemptionKind) -> None:
        self.scheduler.preempt(request_id, self.tick(), "the test says so", kind)

    @rule(request_id=ids, priority=st.integers(-1, 3))
    def change_priority(self, request_id: str, priority: int) -> None:
        self.scheduler.change_priority(request_id, priority, self.tick())

    @rule()
    def forget_prefixes(self) -> None:
        self.scheduler.forget_prefixes()

    @precondition(lambda self: len(self.in_flight) < MAX_IN_FLIGHT)
    @rule()
    def schedule(self) -> None:
        for output in self.scheduler.expire(self.tick()):
            self.keep(output)
        batch = self.scheduler.schedule(self.now)
        assert sum(share.num_new_tokens for share in batch.scheduled) <= self.config.max_num_batched_tokens
        if not batch.scheduled:
            return
        # A step is on its way once it is scheduled, copies first; what comes back late are its results.
        failed = self.runner.copy_blocks(batch.copies)
        if failed:
            batch = self.scheduler.without_lost(batch, failed, self.tick())
        self.in_flight.append((batch, self.runner.run(batch)))

    @precondition(lambda self: self.in_flight)
    @rule()
    def finish_step(self) -> None:
        self.end_step()

    @precondition(lambda self: self.in_flight)
    @rule(index=st.integers(0, 4))
    def finish_step_that_fails_for_one(self, index: int) -> None:
        self.end_step(index)

    def end_step(self, failing_index: int | None = None) -> None:
        batch, sampled = self.in_flight.popleft()
        errors: dict[str, str] = {}
        if failing_index is not None and batch.scheduled:
            failed_id = batch.scheduled[failing_index % len(batch.scheduled)].request_id
            errors[failed_id] = "the test says so"
        shape = shape_of(batch.scheduled)
        self.step_time.observe(shape, 0.01 + 0.001 * shape.num_new_tokens)
        for output in self.scheduler.update(batch, sampled, self.tick(), errors):
            self.keep(output)

    @rule(count=st.integers(1, 20))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.whole_step()

    @rule()
    def drain(self) -> None:
        for _ in range(5000):
            if not self.scheduler.has_unfinished and not self.in_flight:
                break
            self.whole_step()
        assert not self.scheduler.has_unfinished, "somebody starves"
        pools = [self.scheduler.pool, *([self.scheduler.host.pool] if self.scheduler.host is not None else [])]
        for pool in pools:
            assert (pool.num_live, pool.num_pending) == (0, 0), "blocks leaked"
        assert (self.scheduler.waiting_tokens, self.scheduler._roster._groups.num_held_back) == (0, 0)

    def whole_step(self) -> None:
        if len(self.in_flight) < MAX_IN_FLIGHT:
            self.schedule()
        if self.in_flight:
            self.finish_step()

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def keep(self, output: RequestOutput | None) -> None:
        if output is not None:
            self.outputs.setdefault(output.request_id, []).append(output)

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        requests = self.requests()
        check_pool(self.scheduler.pool, self.runner.num_kv_blocks, [request.block_table for request in requests])
        if self.scheduler.host is not None:
            num_host_blocks = self.runner.num_host_blocks
            check_pool(self.scheduler.host.pool, num_host_blocks, [request.host_table for request in requests])

    @invariant()
    def limits_and_counts_hold(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler, requests = self.scheduler, self.requests()
        running = [request for request in requests if is_running(request.state)]
        assert list(scheduler._roster.running) == sorted(running, key=lambda request: request.precedence)
        assert scheduler.num_running <= self.config.max_num_running
        assert scheduler.num_running + scheduler.num_waiting == len(requests)
        held_back = [request for request in requests if request.leader is not None]
        assert (
            len(held_back)
            == scheduler._roster._groups.num_held_back
            == sum(len(request.followers) for request in requests)
        )
        queued = list(scheduler._roster.waiting)
        if self.config.fairness is Fairness.NONE:
            assert [r.precedence for r in scheduler._roster.waiting._queue] == sorted(
                request.precedence for request in scheduler._roster.waiting._queue
            )
        assert list(scheduler._roster.waiting.holders) == [r for r in scheduler._roster.waiting.holders if r in queued]
        assert len(scheduler._roster.waiting.holders) == sum(bool(request.block_table) for request in queued)
        assert not {id(request) for request in (*running, *held_back)} & {id(request) for request in queued}
        num_tokens = sum(len(r.token_ids) - max(r.num_computed_tokens, r.num_swapped_tokens) for r in queued)
        assert scheduler.waiting_tokens == num_tokens + len(held_back)

    def requests(self) -> list[Request]:
        return list(self.scheduler._roster)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.drain()
        for request_id, command in self.commands.items():
            outputs = self.outputs[request_id]
            assert [output.finish_reason is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
            given = [token for output in outputs for token in output.token_ids]
            sampling = command.sampling
            assert sampling.seed is not None
            prompt, num_blocks = tuple(command.prompt_token_ids), self.runner.num_kv_blocks
            expected = alone(prompt, sampling.max_tokens, sampling.seed, sampling.min_tokens, num_blocks)
            match outputs[-1]:
                case RequestOutput(refused=True) | RequestOutput(overloaded=True) | RequestOutput(timed_out=True):
                    assert given == []
                case RequestOutput(finish_reason=FinishReason.ABORT | FinishReason.ERROR):
                    assert given == expected[: len(given)]
                case _:
                    assert given == expected


def check_pool(pool: BlockPool, num_blocks: int, tables: list[list[int]]) -> None:
    """Every block is in one state, and counts as many holders as tables name it."""
    assert pool.num_free + pool.num_live + pool.num_cached + pool.num_pending == pool.num_total == num_blocks
    held = Counter(block for table in tables for block in table)
    assert pool.num_live == len(held)
    for block, num_holders in held.items():
        assert pool.num_holders(block) == num_holders


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=NUM_EXAMPLES, stateful_step_count=NUM_STEPS, deadline=None)
