"""How a server under test is described: what to install, what to start, with which memory and model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

SERVED_NAME = "bench"


class BenchError(Exception):
    """Ends the benchmark with words that say what to change."""


class Speaks(Enum):
    HTTP = auto()  # OpenAI's API on a port
    PIPES = auto()  # a library: its runner takes workloads on stdin and gives records on stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What every server gets alike."""

    model: Path  # a folder of safetensors
    dtype: str
    kv_tokens: int  # tokens that the KV cache holds
    max_model_len: int
    num_cpus: int
    port: int
    ops_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # on top of this process's own
    speaks: Speaks = Speaks.HTTP
    load_url: str | None = None  # of a document whose `kernels` names the variant that the server chose here
    ready_timeout_s: float = 120.0


class Server(Protocol):
    """A server that can be measured: one class a product, one file a class."""

    @property
    def name(self) -> str: ...

    def install(self, model: Path, dtype: str) -> str:
        """Bring everything that `launch` needs; quick when it is there already.

        Returns:
            The version that will be measured.

        Raises:
            BenchError: it cannot be installed here.
        """
        ...

    def launch(self, options: ServerOptions) -> Launch:
        """What to start; no I/O."""
        ...
