"""The tokenizer that a GGUF file's metadata describes: vocabulary, merges, special tokens, and how text is split."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tidegate_server.errors import ModelNotSupported
from tidegate_server.gguf_file import GgufValue
from tidegate_server.text.byte_alphabet import BYTE_OF_CHARACTER, CHARACTER_OF_BYTE

SPACE = "\u2581"  # how SentencePiece writes a space inside a piece
LLAMA3_SPLITS = ("llama-bpe", "llama3")


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`, as far as it matters here."""

    UNKNOWN = 2
    CONTROL = 3  # special: matched whole, and left out of text
    USER_DEFINED = 4  # matched whole, and part of the text
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What every kind of tokenizer in a GGUF file has."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]
    scores: Sequence[float]
    split: str  # `tokenizer.ggml.pre`: the name of the way text is cut before merging

    @staticmethod
    def read(metadata: Mapping[str, GgufValue], path: Path) -> "Vocabulary":
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not tokens:
            raise ModelNotSupported(f"{path} holds no vocabulary (tokenizer.ggml.tokens); convert the model again")
        return Vocabulary(
            tokens=[str(token) for token in tokens],
            kinds=[int(kind) for kind in _list(metadata, "tokenizer.ggml.token_type")],
            merges=[str(merge) for merge in _list(metadata, "tokenizer.ggml.merges")],
            scores=[float(score) for score in _list(metadata, "tokenizer.ggml.scores")],
            split=str(metadata.get("tokenizer.ggml.pre", "default")),
        )

    def of_kind(self, kind: TokenKind) -> list[str]:
        return [token for token, each in zip(self.tokens, self.kinds, strict=False) if each == kind]


def _list(metadata: Mapping[str, GgufValue], key: str) -> Sequence[str | int | float | bool]:
    value = metadata.get(key)
    return value if isinstance(value, list) else ()


def build_gguf_tokenizer(metadata: Mapping[str, GgufValue], path: Path) -> Tokenizer:
    """Build a file's tokenizer, ready to encode and decode.

    Raises:
        ModelNotSupported: a kind of tokenizer, or a way to split text, that is not known here.
    """
    vocabulary = Vocabulary.read(metadata, path)
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            tokenizer = _byte_level(vocabulary, path)
        case "llama":
            add_space = metadata.get("tokenizer.ggml.add_space_prefix") is not False
            tokenizer = _sentencepiece(vocabulary, add_space=add_space)
        case kind:
            raise ModelNotSupported(
                f"{path} has a tokenizer of kind {kind!r}; gpt2 and llama are read from GGUF files: "
                "serve this model's safetensors folder instead"
            )
    _add_whole_tokens(tokenizer, vocabulary)
    # llama.cpp's rule for files that do not say: models of these two kinds were all trained with the begin token.
    wants_bos = metadata.get("tokenizer.ggml.model") == "llama" or vocabulary.split in LLAMA3_SPLITS
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", wants_bos)
    if adds_bos and isinstance(bos_id, int) and 0 <= bos_id < len(vocabulary.tokens):
        bos = vocabulary.tokens[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B"], special_tokens=[(bos, bos_id)]
        )
    return tokenizer


def _add_whole_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    def added(kind: TokenKind, *, special: bool) -> list[AddedToken]:
        # A token that the vocabulary spells otherwise would get a new id, past the model's last row.
        known = [token for token in vocabulary.of_kind(kind) if tokenizer.token_to_id(token) is not None]
        return [AddedToken(token, normalized=False, special=special) for token in known]

    tokenizer.add_special_tokens(added(TokenKind.CONTROL, special=True))
    tokenizer.add_tokens(added(TokenKind.USER_DEFINED, special=False))


# Byte-level BPE.

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2_split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_gpt2_split() -> pre_tokenizers.PreTokenizer:
    """Each digit alone, then as GPT-2 does: a blank run before a digit stays one piece."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_split()])


def _regex_split(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_BYTE_LEVEL_SPLITS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2_split,
    "gpt-2": _gpt2_split,
    "smollm": _digits_then_gpt2_split,
    "llama-bpe": lambda: _regex_split(_LLAMA3_SPLIT),
    "llama3": lambda: _regex_split(_LLAMA3_SPLIT),
    "qwen2": lambda: _regex_split(_QWEN2_SPLIT),
}


def _byte_level(vocabulary: Vocabulary, path: Path) -> Tokenizer:
    split = _BYTE_LEVEL_SPLITS.get(vocabulary.split)
    if split is None:
        raise ModelNotSupported(
            f"{path} splits text the way called {vocabulary.split!r}; known are {', '.join(_BYTE_LEVEL_SPLITS)}: "
            "serve this model's safetensors folder instead"
        )
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    vocab = {_in_byte_alphabet(token): token_id for token_id, token in enumerate(vocabulary.tokens)}
    # Llama 3's vocabulary holds words that its merges do not reach.
    whole_words_first = vocabulary.split in LLAMA3_SPLITS
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=whole_words_first))
    if vocabulary.split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _in_byte_alphabet(token: str) -> str:
    if all(character in BYTE_OF_CHARACTER for character in token):
        return token
    return "".join(CHARACTER_OF_BYTE[byte] for byte in token.encode())


# SentencePiece BPE with bytes for what the vocabulary lacks.


def _sentencepiece(vocabulary: Vocabulary, *, add_space: bool) -> Tokenizer:
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.of_kind(TokenKind.UNKNOWN)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges_by_score(vocabulary, vocab),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if add_space else replace
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_space else steps)
    return tokenizer


def _merges_by_score(vocabulary: Vocabulary, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary implies: every way to make a piece of two, best score first."""
    ranked: list[tuple[float, int, str, str]] = []
    for token_id, (piece, score) in enumerate(zip(vocabulary.tokens, vocabulary.scores, strict=False)):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                ranked.append((-score, token_id, left, right))
    ranked.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in ranked]
