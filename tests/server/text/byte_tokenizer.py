"""A byte-level tokenizer without merges: token id = byte, and two special tokens after them."""

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tidegate_server.text.byte_alphabet import CHARACTER_OF_BYTE
from tidegate_server.text.chat_template import ChatTemplate
from tidegate_server.text.tokenizer import Tokenizer

START = 256  # <|start|>
END = 257  # <|end|>
VOCAB_SIZE = 258

TEMPLATE = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + ':' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>' }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    vocab = {CHARACTER_OF_BYTE[byte]: byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|start|>", normalized=False), AddedToken("<|end|>", normalized=False)])
    return Tokenizer(backend)


def byte_template() -> ChatTemplate:
    return ChatTemplate(TEMPLATE, {"bos_token": "<|start|>", "eos_token": "<|end|>"})
