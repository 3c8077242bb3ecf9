"""The real application on a real socket, with an engine that echoes: for tests that speak HTTP."""

import asyncio
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from tests.server.api.echo_engine import EchoEngine
from tests.server.text.byte_tokenizer import END, VOCAB_SIZE, byte_template, byte_tokenizer
from tidegate_server.api.generation import Service
from tidegate_server.api.http_server import HttpServer
from tidegate_server.api.lifecycle import Lifecycle
from tidegate_server.api.request_terms import TermsPolicy
from tidegate_server.api.routes import ApiState, build_app
from tidegate_server.api.sampling import Limits
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.listeners import bind
from tidegate_server.metrics import BuildFacts, ServerMetrics
from tidegate_server.text.chat_template import ChatTemplate

MODEL = "echo"
TIMEOUT_S = 30

T = TypeVar("T")


class ApiServer:
    """Runs an event loop in a thread; everything of the server is touched through `call`."""

    def __init__(
        self, *, ready: bool = True, max_model_len: int = 256, kv_tokens: int = 1024, terms: TermsPolicy | None = None
    ) -> None:
        self._ready = ready
        self._terms = TermsPolicy() if terms is None else terms
        self._limits = Limits(
            max_model_len=max_model_len, kv_tokens=kv_tokens, vocab_size=VOCAB_SIZE, eos_token_ids=(END,)
        )
        self._listener: socket.socket = bind("127.0.0.1", 0, "--port")
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._started = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.call(self.engine.stop)
        self.loop.call_soon_threadsafe(self._http.stop)
        self._thread.join(TIMEOUT_S)

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = EchoEngine()
        self.lifecycle = Lifecycle()
        self.metrics = ServerMetrics(
            MODEL, EngineSnapshot, lambda: self.lifecycle.state, lambda: BuildFacts(version="test")
        )
        self.state = ApiState(self.lifecycle, self.metrics, self._terms)
        if self._ready:
            self.become_ready(byte_template())
        self._http = HttpServer(build_app(self.state), self._listener)
        serving = asyncio.create_task(self._http.run())
        await self._http.started()
        self._started.set()
        await serving

    def become_ready(self, template: ChatTemplate | None) -> None:
        self.state.service = Service(
            engine=self.engine,
            tokenizer=byte_tokenizer(),
            template=template,
            limits=self._limits,
            model_name=MODEL,
            created=1_700_000_000,
            metrics=self.metrics,
        )
        self.lifecycle.became_ready()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the server's event loop."""

        async def on_loop() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(on_loop(), self.loop).result(TIMEOUT_S)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the server is about to do."""

        async def poll() -> None:
            while not holds():
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(asyncio.wait_for(poll(), TIMEOUT_S), self.loop).result(TIMEOUT_S)

    def close_gate(self, after: int = 0) -> None:
        """Streams wait from here on, new ones after so many outputs."""

        def close() -> None:
            self.engine.gate.clear()
            self.engine.num_free_outputs = after

        self.call(close)

    def open_gate(self) -> None:
        self.call(self.engine.gate.set)

    def count(self, sample: str, **labels: str) -> float:
        """A metric's value now."""
        for family in text_string_to_metric_families(self.metrics.exposition().decode()):
            for each in family.samples:
                if each.name == sample and labels.items() <= each.labels.items():
                    return float(each.value)
        raise AssertionError(f"no sample {sample} with {labels}")
