"""What each step of a static group computes: its prompts with padding, then one token for every row."""

from dataclasses import dataclass
from typing import Final

from tidegate_server.engine.batch import RequestId, ScheduledRequest
from tidegate_server.engine.request import Request, RequestState

_PAD_TOKEN_ID: Final = 0
_PADDING_EPOCH: Final = 0  # no request has it


@dataclass(slots=True)
class StaticGroup:
    """Requests that start together and leave together; finished ones are computed on until all are done.

    Every row's block table has room for the padded prompt and for the longest output.
    """

    rows: dict[RequestId, Request]
    width: int  # tokens of the longest prompt; every row is padded to it
    num_prefilled: int = 0  # of the width, for every row

    @property
    def is_done(self) -> bool:
        return all(row.state is RequestState.FINISHED for row in self.rows.values())

    def next_shares(self, token_cap: int) -> tuple[ScheduledRequest, ...]:
        """The next step.

        Args:
            token_cap: most tokens that it computes; no fewer than there are rows.
        """
        if self.num_prefilled < self.width:
            return self._prefills(token_cap)
        # A finished row computes its last token again and again.
        return tuple(row.share(len(row.token_ids) - 1, len(row.token_ids)) for row in self.rows.values())

    def _prefills(self, token_cap: int) -> tuple[ScheduledRequest, ...]:
        """As many columns as the cap allows: of each row what its prompt has there, and padding."""
        start = self.num_prefilled
        stop = self.num_prefilled = min(self.width, start + token_cap // len(self.rows))
        shares: list[ScheduledRequest] = []
        for row in self.rows.values():
            length = row.num_prompt_tokens
            if start < length:
                shares.append(row.share(start, min(stop, length)))
            if stop > length:
                shares.append(_padding(row, max(start, length), stop))
        return tuple(shares)


def _padding(row: Request, start: int, stop: int) -> ScheduledRequest:
    """Positions after the row's prompt, in a share of their own: a draw is made at a share's last token."""
    return ScheduledRequest(
        request_id=RequestId(f"{row.request_id}, padding"),
        start=start,
        token_ids=(_PAD_TOKEN_ID,) * (stop - start),
        block_table=row.block_table,
        sampling=None,
        seed=row.seed,
        epoch=_PADDING_EPOCH,
    )
