"""More requests at once than the KV memory holds, run to their end under one way to schedule them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tidegate_bench.engine.result import AMPLE, STATIC
from tidegate_server.bench.prompts import prompt_token_ids
from tidegate_server.bench.workloads import PlannedRequest
from tidegate_server.engine.batch import LoadedRunner
from tidegate_server.engine.core import Engine
from tidegate_server.engine.event_log import EventKind, EventLog
from tidegate_server.engine.messages import AddRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.settings import EngineSettings, PreemptionMode, SchedulerKind

NUM_FULL_SEQUENCES = 8  # the KV memory holds so many of the longest requests
_MAX_EVENTS = 1 << 18  # none of a run is lost


@dataclass(frozen=True, slots=True)
class Condition:
    """One way to schedule."""

    name: str
    settings: EngineSettings
    is_ample: bool = False  # memory for all of the requests
    has_host_memory: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine did with a workload."""

    num_completed: int  # with exactly the tokens they asked for
    num_output_tokens: int
    duration_s: float
    preemptions: tuple[int, ...]  # of each request that was preempted at all
    recomputed_tokens: int
    swapped_bytes: int  # out and in


def conditions(settings: EngineSettings) -> Iterator[Condition]:
    """Every way, in the order of the table.

    Args:
        settings: of all of them, beside what each is about.
    """
    for mode in (PreemptionMode.AUTO, PreemptionMode.RECOMPUTE, PreemptionMode.TAIL):
        yield Condition(f"preemption {mode}", replace(settings, preemption_mode=mode))
    swap = replace(settings, preemption_mode=PreemptionMode.SWAP)
    yield Condition("preemption swap, with host memory", swap, has_host_memory=True)
    yield Condition(AMPLE, replace(settings, max_num_seqs=NUM_FULL_SEQUENCES), is_ample=True)
    yield Condition(STATIC, replace(settings, scheduler=SchedulerKind.STATIC))


def serve_all(
    runner: LoadedRunner,
    settings: EngineSettings,
    requests: Sequence[PlannedRequest],
    seed: int,
    clock: Callable[[], float],
) -> Served:
    """Give a new engine all requests at once, and step until none is left.

    Args:
        seed: of the prompts' tokens.
        clock: seconds, monotonic.
    """
    engine = Engine(runner, settings, clock=clock, events=EventLog(_MAX_EVENTS))
    commands = [_command(request, runner.vocab_size, seed, clock()) for request in requests]
    start_s = clock()
    for command in commands:
        engine.apply(command)
    num_tokens: Counter[str] = Counter()
    while engine.has_work:
        step = engine.step()
        for output in step.outputs if step is not None else ():
            num_tokens[output.request_id] += len(output.token_ids)
    duration_s = clock() - start_s
    preempted = Counter(event.request_id for event in engine.events.of(EventKind.PREEMPTED))
    snapshot = engine.snapshot()
    return Served(
        num_completed=sum(num_tokens[each.request_id] == each.sampling.max_tokens for each in commands),
        num_output_tokens=num_tokens.total(),
        duration_s=duration_s,
        preemptions=tuple(preempted.values()),
        recomputed_tokens=engine.scheduler.recomputed_tokens,
        swapped_bytes=snapshot.swapped_out_bytes + snapshot.swapped_in_bytes,
    )


def _command(request: PlannedRequest, vocab_size: int, seed: int, now_s: float) -> AddRequest:
    return AddRequest(
        request_id=f"overload-{request.index}",
        prompt_token_ids=prompt_token_ids(request, vocab_size, seed),
        sampling=SamplingParams(max_tokens=request.num_output_tokens, temperature=0.0, ignore_eos=True),
        arrival_s=now_s,
    )
