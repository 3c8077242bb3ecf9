"""Adds, aborts, preempts and steps at random with a tiny pool: everybody gets what they would get alone."""

from collections import Counter, deque
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.server.engine.counting_runner import CountingRunner
from tests.server.engine.driving import add_request, tokens_alone
from tidegate_server.engine.batch import Batch
from tidegate_server.engine.core import scheduler_config
from tidegate_server.engine.messages import AddRequest, FinishReason, RequestOutput
from tidegate_server.engine.request import Request
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.engine.scheduler import Scheduler
from tidegate_server.settings import EngineSettings

NUM_BLOCKS = 9
MAX_MODEL_LEN = 30
EOS = (3,)
MAX_IN_FLIGHT = 3


def make_runner() -> CountingRunner:
    return CountingRunner(
        num_kv_blocks=NUM_BLOCKS, max_model_len=MAX_MODEL_LEN, vocab_size=40, eos_token_ids=EOS, mixes=True
    )


@cache
def alone(prompt: tuple[int, ...], max_tokens: int, seed: int, min_tokens: int) -> list[int]:
    sampling = SamplingParams(max_tokens=max_tokens, seed=seed, min_tokens=min_tokens)
    return tokens_alone(add_request("alone", prompt, sampling=sampling), make_runner())


class SchedulerMachine(RuleBasedStateMachine):
    """Steps may overlap; results come back in order, at any time later."""

    ids = Bundle("ids")

    @initialize(
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.sampled_from([1, 2, 5, 16, 64]),
        prefix_caching=st.booleans(),
    )
    def start(self, max_num_seqs: int, max_num_batched_tokens: int, prefix_caching: bool) -> None:
        self.runner = make_runner()
        config = scheduler_config(
            self.runner,
            EngineSettings(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                prefix_caching=prefix_caching,
            ),
            "rev",
        )
        self.scheduler = Scheduler(config, hash_key=b"key")
        self.config = config
        self.now = 0.0
        self.commands: dict[str, AddRequest] = {}
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.in_flight: deque[Batch] = deque()

    @rule(
        target=ids,
        family=st.integers(0, 1),
        length=st.integers(1, MAX_MODEL_LEN - 1),
        max_tokens=st.integers(1, 20),
        seed=st.integers(0, 1),
        priority=st.integers(0, 2),
        min_tokens=st.sampled_from([0, 0, 5]),
    )
    def add(self, family: int, length: int, max_tokens: int, seed: int, priority: int, min_tokens: int) -> str:
        request_id = f"r{len(self.commands)}"
        prompt = [family * 10 + position % 7 for position in range(length)]  # long common prefixes
        sampling = SamplingParams(max_tokens=max_tokens, seed=seed, min_tokens=min_tokens)
        command = add_request(request_id, prompt, priority=priority, sampling=sampling, arrival_s=self.tick())
        self.commands[request_id] = command
        assert self.scheduler.add(command, self.now) is None
        return request_id

    @rule(request_id=ids)
    def abort(self, request_id: str) -> None:
        self.keep(self.scheduler.abort(request_id, self.tick()))

    @rule(request_id=ids)
    def preempt(self, request_id: str) -> None:
        self.scheduler.preempt(request_id, self.tick(), "the test says so")

    @precondition(lambda self: len(self.in_flight) < MAX_IN_FLIGHT)
    @rule()
    def schedule(self) -> None:
        batch = self.scheduler.schedule(self.tick())
        assert sum(share.num_new_tokens for share in batch.scheduled) <= self.config.max_num_batched_tokens
        if batch.scheduled:
            self.in_flight.append(batch)

    @precondition(lambda self: self.in_flight)
    @rule()
    def finish_step(self) -> None:
        batch = self.in_flight.popleft()
        for output in self.scheduler.update(batch, self.runner.run(batch), self.tick()):
            self.keep(output)

    @rule(count=st.integers(1, 20))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.whole_step()

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
        pool = self.scheduler.pool
        assert pool.num_free + pool.num_live + pool.num_cached + pool.num_pending == pool.num_total == NUM_BLOCKS
        held = Counter(block for request in self.running() for block in request.block_table)
        assert pool.num_live == len(held)
        for block, num_holders in held.items():
            assert pool.num_holders(block) == num_holders

    @invariant()
    def limits_and_counts_hold(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        assert scheduler.num_running <= self.config.max_num_running
        assert scheduler.num_running + scheduler.num_waiting == len(scheduler.unfinished_ids())
        assert scheduler.waiting_tokens == sum(len(request.token_ids) for request in scheduler._waiting)
        assert [request.order for request in self.running()] == sorted(request.order for request in self.running())

    def running(self) -> list[Request]:
        return list(self.scheduler._running)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.scheduler.has_unfinished and not self.in_flight:
                break
            self.whole_step()
        assert not self.scheduler.has_unfinished, "somebody starves"
        pool = self.scheduler.pool
        assert (pool.num_live, pool.num_pending) == (0, 0), "blocks leaked"
        for request_id, command in self.commands.items():
            outputs = self.outputs[request_id]
            assert [output.finish_reason is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
            given = [token for output in outputs for token in output.token_ids]
            sampling = command.sampling
            assert sampling.seed is not None
            expected = alone(tuple(command.prompt_token_ids), sampling.max_tokens, sampling.seed, sampling.min_tokens)
            if outputs[-1].finish_reason is FinishReason.ABORT:
                assert given == expected[: len(given)]
            else:
                assert given == expected


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
