"""Short ways to make requests and to run an engine by hand, shared by the engine's tests."""

from collections.abc import Sequence

from tests.server.engine.counting_runner import CountingRunner
from tidegate_server.engine.batch import Batch
from tidegate_server.engine.core import Engine
from tidegate_server.engine.messages import AddRequest, RequestOutput
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.settings import EngineSettings


class FakeClock:
    """Seconds that pass when told to; one tick for every look, so that no two events coincide."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def add_request(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int = 4,
    *,
    priority: int = 0,
    cache_salt: str = "",
    leader_id: str = "",
    sampling: SamplingParams | None = None,
    arrival_s: float = 0.0,
) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=sampling if sampling is not None else SamplingParams(max_tokens=max_tokens, temperature=0.0),
        arrival_s=arrival_s,
        priority=priority,
        cache_salt=cache_salt,
        leader_id=leader_id,
    )


class Driver:
    """An engine on a counting runner, stepped by hand; collects what each request was given."""

    def __init__(self, runner: CountingRunner | None = None, **settings: object) -> None:
        self.runner = runner if runner is not None else CountingRunner()
        self.clock = FakeClock()
        self.engine = Engine(self.runner, EngineSettings(**settings), "rev", self.clock)  # type: ignore[arg-type]  # test keywords are the settings' own
        self.outputs: dict[str, list[RequestOutput]] = {}

    def add(self, *commands: AddRequest) -> None:
        for command in commands:
            self.engine.apply(command)

    def step(self) -> None:
        output = self.engine.step()
        for each in output.outputs if output is not None else ():
            self.outputs.setdefault(each.request_id, []).append(each)

    def run(self, max_steps: int = 10_000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.outputs.get(request_id, ()) for token in output.token_ids]

    def last(self, request_id: str) -> RequestOutput:
        return self.outputs[request_id][-1]

    @property
    def batches(self) -> list[Batch]:
        return self.runner.batches


def tokens_alone(command: AddRequest, runner: CountingRunner, root_seed: int = 0) -> list[int]:
    """What a request gets when it has an engine to itself; it must bring its seed."""
    alone = Driver(runner, seed=root_seed)
    alone.add(command)
    alone.run()
    return alone.tokens(command.request_id)
