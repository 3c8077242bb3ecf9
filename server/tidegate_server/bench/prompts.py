"""The token ids of a planned request, drawn when they are needed."""

from random import Random

from tidegate_server.bench.workloads import PlannedRequest

# Below lie special tokens and single bytes in most vocabularies, which some tokenizers treat apart.
_FIRST_TOKEN_ID = 1000


def prompt_token_ids(request: PlannedRequest, vocab_size: int, seed: int) -> list[int]:
    """Draw a prompt: the same tokens for the same segments, seed and vocabulary.

    Args:
        vocab_size: token ids are drawn below it.
    """
    candidates = range(min(_FIRST_TOKEN_ID, vocab_size // 2), vocab_size)
    token_ids: list[int] = []
    for segment in request.segments:
        token_ids += Random(f"{seed}/{segment.name}").choices(candidates, k=segment.num_tokens)
    return token_ids
