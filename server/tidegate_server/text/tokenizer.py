"""Text to token ids, and the bytes and text of single tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import tokenizers
from tokenizers import decoders

from tidegate_server.errors import ModelNotFound, ModelNotSupported
from tidegate_server.gguf_file import GgufFile
from tidegate_server.text.byte_alphabet import BYTE_OF_CHARACTER
from tidegate_server.text.detokenizer import ByteLevelDetokenizer, Detokenizer, WindowedDetokenizer
from tidegate_server.text.gguf_tokenizer import build_gguf_tokenizer
from tidegate_server.text.token_bound import token_bound

# A chat reply shows the bytes of up to 20 candidates per token; the common ones come again and again.
TOKEN_BYTES_CACHE_SIZE = 1 << 16

# Tokens of the prompt that a windowed detokenizer looks back on, so that an output's first space is kept.
PROMPT_TAIL_TOKENS = 4


class Tokenizer:
    """One model's tokenizer. Threads may share it: it holds no state between calls."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()  # a tokenizer.json may bring its training settings
        backend.no_padding()
        self._backend = backend
        self._byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self._special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._bound = token_bound(backend)
        self.token_bytes = lru_cache(maxsize=TOKEN_BYTES_CACHE_SIZE)(self._token_bytes)

    @property
    def vocab_size(self) -> int:
        """Ids below this one may be in the vocabulary; added tokens are counted."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; special tokens written in it are taken as such.

        Args:
            text: any text.
            add_special_tokens: put before and after it what the model was trained with. A rendered chat template
                holds them already.
        """
        # As a batch of one, which is encoded without Python's lock: streams go on beside a text of megabytes.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoding.ids)

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that a text has at least, found without encoding it."""
        return 0 if self._bound is None else self._bound.fewest_tokens(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of all tokens at once, special ones left out."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))

    def detokenizer(self, prompt_token_ids: Sequence[int]) -> Detokenizer:
        """Starts the text that follows a prompt."""
        if self._byte_level:
            return ByteLevelDetokenizer(self.token_bytes, self._special_ids)
        tail = [token_id for token_id in prompt_token_ids[-PROMPT_TAIL_TOKENS:] if token_id not in self._special_ids]
        return WindowedDetokenizer(self.decode, self._special_ids, tail)

    def token_text(self, token_id: int) -> str:
        """One token alone as text; bytes that are no whole character become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def _token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text; those of its name for a special token; none for an unknown id."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            if token_id not in self._special_ids and all(character in BYTE_OF_CHARACTER for character in token):
                return bytes(BYTE_OF_CHARACTER[character] for character in token)
            return bytes(token, "utf-8")
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return bytes(token.replace("\u2581", " "), "utf-8")


def load_folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder of safetensors.

    Raises:
        ModelNotFound: the folder holds no tokenizer.json.
        ModelNotSupported: the file cannot be read as one.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelNotFound(
            f"{folder} holds no tokenizer.json; write one with transformers: "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    with _refused_where_it_does_not_build(path):
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))


def load_gguf_tokenizer(gguf: GgufFile) -> Tokenizer:
    """The tokenizer inside a GGUF file.

    Raises:
        ModelNotSupported: of a kind this server does not build, or damaged.
    """
    with _refused_where_it_does_not_build(gguf.path):
        return Tokenizer(build_gguf_tokenizer(gguf.metadata, gguf.path))


@contextmanager
def _refused_where_it_does_not_build(path: Path) -> Iterator[None]:
    try:
        yield
    except ModelNotSupported:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for every kind of bad data
        raise ModelNotSupported(
            f"{path} holds no tokenizer that this server can build ({error}); copy it again, or convert the model again"
        ) from error
