"""From logits to tokens: greedy, at random, and log-probabilities, beside our own sampler in torch."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from tidegate_bench.kernels.case import Case
from tidegate_kernels.cpu.library import Library
from tidegate_kernels.cpu.structs import TgArgmax, TgDraw, TgDrawRow, TgLogprobs, TgLogprobsRow
from tidegate_server.engine.batch import RequestId, ScheduledRequest
from tidegate_server.engine.sampling_params import SamplingParams
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.sampler import Draw, Row
from tidegate_server.model.sampler_torch import TorchSamplerOps

NUM_ROWS = (1, 64)
DRAWS = {
    "whole vocabulary": SamplingParams(max_tokens=1, temperature=0.8),
    "top_k 40, top_p 0.9": SamplingParams(max_tokens=1, temperature=0.8, top_k=40, top_p=0.9),
}
NUM_TOP = 5  # log-probabilities beside that of the drawn token


def argmax_cases(library: Library, config: ModelConfig, num_rows: Sequence[int] = NUM_ROWS) -> Iterator[Case]:
    """One case for each number of requests; gives the tokens' ids."""
    return (_argmax_case(library, _Rows(config, count)) for count in num_rows)


def draw_cases(library: Library, config: ModelConfig, num_rows: Sequence[int] = NUM_ROWS) -> Iterator[Case]:
    """One case for each way to draw and number of requests; gives the tokens' ids."""
    return (_draw_case(library, _Rows(config, count), what) for what in DRAWS for count in num_rows)


def logprobs_cases(library: Library, config: ModelConfig, num_rows: Sequence[int] = NUM_ROWS) -> Iterator[Case]:
    """One case for each number of requests; gives the log-probability of a token of each."""
    return (_logprobs_case(library, _Rows(config, count)) for count in num_rows)


class _Rows:
    """Logits of so many requests, as they come out of the head."""

    def __init__(self, config: ModelConfig, count: int) -> None:
        self.count, self.num_tokens = count, config.vocab_size
        self.logits = 3 * torch.randn(count, config.vocab_size)
        self.rows = [Row(row, row.max().item()) for row in self.logits]

    def case(
        self,
        kernel: str,
        what: str,
        ours: Callable[[], Tensor],
        plain: Callable[[], Tensor],
        tolerance: float = 0.0,
        kept: object = None,
    ) -> Case:
        return Case(
            kernel=kernel,
            what=what,
            rows=self.count,
            data="fp32",
            moved_bytes=self.logits.nbytes,
            flop=self.count * self.num_tokens,
            peaks=("float32",),
            ours=ours,
            torch=plain,
            tolerance=tolerance,
            kept=(self.logits, kept),
        )


def _argmax_case(library: Library, rows: _Rows) -> Case:
    maximum, index = torch.empty(rows.count), torch.empty(rows.count, dtype=torch.int64)
    op = TgArgmax(
        x=rows.logits.data_ptr(),
        index=index.data_ptr(),
        maximum=maximum.data_ptr(),
        m=rows.count,
        n=rows.num_tokens,
        x_stride=rows.logits.stride(0),
    )

    def run() -> Tensor:
        library.run_argmax(op)
        return index

    return rows.case("argmax", "greedy", run, lambda: torch.max(rows.logits, dim=-1).indices, kept=maximum)


def _draw_case(library: Library, rows: _Rows, what: str) -> Case:
    sampling = DRAWS[what]
    draws = [Draw(_request(seed), sampling) for seed in range(rows.count)]
    token_ids = torch.empty(rows.count, dtype=torch.int64)
    structs = (TgDrawRow * rows.count)(
        *(
            TgDrawRow(
                x=row.logits.data_ptr(),
                random=draw.random,
                top_p=sampling.top_p,
                top_k=sampling.top_k or 0,
                maximum=row.maximum,
                temperature=sampling.temperature,
            )
            for row, draw in zip(rows.rows, draws, strict=True)
        )
    )
    op = TgDraw(rows=structs, token_ids=token_ids.data_ptr(), m=rows.count, n=rows.num_tokens)

    def run() -> Tensor:
        library.run_draw(op)
        return token_ids

    return rows.case("draw", what, run, lambda: torch.tensor(TorchSamplerOps().draw(rows.rows, draws)))


def _logprobs_case(library: Library, rows: _Rows) -> Case:
    token_ids = torch.randint(0, rows.num_tokens, (rows.count,)).tolist()
    logprobs, top_logprobs = torch.empty(rows.count), torch.empty(rows.count, NUM_TOP)
    top_ids = torch.empty(rows.count, NUM_TOP, dtype=torch.int64)
    structs = (TgLogprobsRow * rows.count)(
        *(
            TgLogprobsRow(x=row.logits.data_ptr(), token_id=token_id, num_top=NUM_TOP, maximum=row.maximum)
            for row, token_id in zip(rows.rows, token_ids, strict=True)
        )
    )
    op = TgLogprobs(
        rows=structs,
        logprobs=logprobs.data_ptr(),
        top_ids=top_ids.data_ptr(),
        top_logprobs=top_logprobs.data_ptr(),
        m=rows.count,
        n=rows.num_tokens,
        top_stride=NUM_TOP,
    )

    def run() -> Tensor:
        library.run_logprobs(op)
        return logprobs

    def run_torch() -> Tensor:
        found = TorchSamplerOps().logprobs(rows.rows, token_ids, [NUM_TOP] * rows.count)
        return torch.tensor([one.drawn for one in found])

    what = f"of a token and the best {NUM_TOP}"
    return rows.case("logprobs", what, run, run_torch, tolerance=1e-5, kept=(top_ids, top_logprobs))


def _request(seed: int) -> ScheduledRequest:
    return ScheduledRequest(RequestId(str(seed)), start=0, token_ids=[0], block_table=[1], sampling=None, seed=seed)
