"""How a request wants its tokens drawn, and when it ends."""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Checked by the API before it gets here; crosses to the engine process as it is.

    The draw for a token depends on its logits row, these parameters, the seed, the position and `choice` only.
    """

    max_tokens: int  # tokens to generate, at least 1
    temperature: float = 1.0  # 0: greedy; a finite number in fp32
    top_p: float = 1.0  # (0, 1]
    top_k: int | None = None  # keep the k most probable tokens; None: all
    seed: int | None = None  # None: the engine draws one when the request arrives
    choice: int = 0  # index of this choice among the `n` of one API request
    stop_token_ids: tuple[int, ...] = ()  # beside the model's own end tokens
    ignore_eos: bool = False
    min_tokens: int = 0  # end tokens cannot be drawn before so many tokens were generated
    logprobs: int | None = None  # None: none; k: of the drawn token and of the k most probable ones
