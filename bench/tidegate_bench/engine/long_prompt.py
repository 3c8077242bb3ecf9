"""A long prompt that arrives among requests which decode: what it does to their gaps between tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tidegate_server.engine.batch import LoadedRunner
from tidegate_server.engine.core import Engine
from tidegate_server.engine.messages import AddRequest, StepOutput
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.settings import EngineSettings

_LONG = "long"
_FIRST_TOKEN_ID = 1000  # below lie special tokens and single bytes


@dataclass(frozen=True, slots=True)
class Intrusion:
    """Who decodes, and what comes in between."""

    num_decodes: int = 16
    num_decode_prompt_tokens: int = 128
    num_settling_steps: int = 32  # all of them decode: the engine learns what that takes, as one that serves has
    num_undisturbed_steps: int = 64  # before the prompt, and again after it: contexts grow meanwhile
    num_prompt_tokens: int = 4000

    def num_kv_blocks(self, block_size: int) -> int:
        """Enough even if every step takes one token of a prompt; on a CPU, those never written take no memory."""
        num_steps = (
            self.num_decodes * self.num_decode_prompt_tokens
            + self.num_settling_steps
            + 2 * self.num_undisturbed_steps
            + self.num_prompt_tokens
        )
        # One more for each: that is the margin at admission.
        of_a_decode = (self.num_decode_prompt_tokens + num_steps) // block_size + 2
        return self.num_prompt_tokens // block_size + 2 + self.num_decodes * of_a_decode


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between two tokens of a request that decodes; the same for all of them, for each is in every step."""

    undisturbed_s: tuple[float, ...]  # before and after
    during_s: tuple[float, ...]  # from the prompt's arrival to its first token
    ttft_s: float  # of the prompt


def intrude(
    runner: LoadedRunner, settings: EngineSettings, intrusion: Intrusion, seed: int, clock: Callable[[], float]
) -> Gaps:
    """Let the requests decode alone, send the prompt, let them decode alone again, and note each token's time.

    Args:
        seed: of the prompts' tokens.
        clock: seconds, monotonic.
    """
    engine = Engine(runner, replace(settings, max_num_seqs=intrusion.num_decodes + 1), clock=clock)
    draw = Random(f"{seed}/intrusion")

    def send(request_id: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        token_ids = draw.choices(range(_FIRST_TOKEN_ID, runner.vocab_size), k=num_prompt_tokens)
        sampling = SamplingParams(max_tokens=num_output_tokens, temperature=0.0, ignore_eos=True)
        engine.apply(
            AddRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling, arrival_s=clock())
        )

    decodes = [f"decode-{index}" for index in range(intrusion.num_decodes)]
    for request_id in decodes:
        send(request_id, intrusion.num_decode_prompt_tokens, runner.max_model_len - intrusion.num_decode_prompt_tokens)
    begun: set[str] = set()
    while len(begun) < len(decodes):
        begun.update(_drawn(engine.step()))
    last_s = clock()  # every step from here on draws one token for each of them

    def gap_s(step: StepOutput | None) -> float:
        nonlocal last_s
        missing = set(decodes) - set(_drawn(step))
        assert not missing, f"a step drew no token for {sorted(missing)}"
        before_s, last_s = last_s, clock()
        return last_s - before_s

    for _ in range(intrusion.num_settling_steps):
        gap_s(engine.step())
    undisturbed_s = [gap_s(engine.step()) for _ in range(intrusion.num_undisturbed_steps)]
    sent_s = clock()
    send(_LONG, intrusion.num_prompt_tokens, 1)
    during_s: list[float] = []
    drawn: set[str] = set()
    while _LONG not in drawn:
        step = engine.step()
        during_s.append(gap_s(step))
        drawn = set(_drawn(step))
    ttft_s = last_s - sent_s
    undisturbed_s += [gap_s(engine.step()) for _ in range(intrusion.num_undisturbed_steps)]
    return Gaps(tuple(undisturbed_s), tuple(during_s), ttft_s)


def _drawn(step: StepOutput | None) -> list[str]:
    """The requests that got a token."""
    return [output.request_id for output in step.outputs if output.token_ids] if step is not None else []
