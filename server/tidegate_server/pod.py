"""One pod's life: start the engine and the ports, serve, drain, stop; every way out has its exit code and reason."""

import asyncio
import functools
import importlib
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from tidegate_contract.admin import DrainReply, DrainRequest, RecordingReply, ServerState
from tidegate_server import log as logs
from tidegate_server.api.lifecycle import DrainEnd, Lifecycle
from tidegate_server.api.ops_report import PodView
from tidegate_server.api.probes import OpsServer, OpsSources
from tidegate_server.api.request_terms import TermsPolicy
from tidegate_server.background import in_daemon_thread
from tidegate_server.engine.client import EngineClient
from tidegate_server.engine.launch import RunnerFactory
from tidegate_server.engine.messages import EngineReady
from tidegate_server.engine.progress_watch import Progress, ProgressWatch, standstill
from tidegate_server.engine.recording import recording_path
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.metrics import BuildFacts, ServerMetrics
from tidegate_server.model_source import ModelFiles, resolve_model
from tidegate_server.settings import ServerSettings
from tidegate_server.termination import leave_message
from tidegate_server.version import server_version

if TYPE_CHECKING:
    from tidegate_server.api.http_server import HttpServer
    from tidegate_server.text.model_text import ModelText

log = structlog.get_logger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130  # stopped by a second Ctrl-C

LOOP_BEAT_S = 1.0

# When the engine is told to stop, its open requests end with an error that still has to reach their clients.
LAST_WORDS_S = 2.0
ENGINE_STOP_TIMEOUT_S = 8.0  # the step that runs is finished first; all waits together stay under the 15 s of grace


@dataclass(frozen=True, slots=True)
class Listeners:
    """Listening sockets; what comes in waits until somebody answers."""

    api: socket.socket
    ops: socket.socket


@dataclass(frozen=True, slots=True)
class _LoadedModel:
    engine: EngineClient
    ready: EngineReady
    text: "ModelText"


class Pod:
    """Everything of one server process; made on the running event loop."""

    def __init__(
        self, settings: ServerSettings, listeners: Listeners, load_runner: RunnerFactory | None = None
    ) -> None:
        """
        Args:
            load_runner: makes the model's runner in the engine process; None: the real one.
        """
        self._settings = settings
        self._load_runner = load_runner
        self._listeners = listeners
        self._lifecycle = Lifecycle()
        self._engine: EngineClient | None = None
        self._facts = BuildFacts(
            version=server_version(),
            block_size=settings.engine.block_size,
            prefix_caching=settings.engine.has_prefix_cache,
        )
        self._metrics = ServerMetrics(
            settings.model_name, self._snapshot, lambda: self._lifecycle.state, lambda: self._facts
        )
        self._loop = asyncio.get_running_loop()
        self._num_interrupts = 0

    async def run(self, early_signals: Sequence[signal.Signals] = ()) -> int:
        """Live; gives the exit code.

        Args:
            early_signals: what came before; a signal that comes from now on is heard here.

        Raises:
            StartError: the model could not be found, or the engine not be started.
        """
        ops = OpsServer(self._listeners.ops, self._ops_sources())
        ops.start()
        self._hear_signals(early_signals)
        beating = asyncio.create_task(self._beat())
        loading = asyncio.create_task(self._load())
        log.info("loading", model=self._settings.model_uri, ops_port=self._listeners.ops.getsockname()[1])
        try:
            return await self._serve(loading)
        finally:
            beating.cancel()
            loading.cancel()
            await asyncio.gather(beating, loading, return_exceptions=True)
            if self._engine is not None:
                await self._engine.shutdown(ENGINE_STOP_TIMEOUT_S)
            ops.stop()

    # Starting.

    async def _load(self) -> _LoadedModel:
        """The model in its engine process, and its text side here, at the same time."""
        uri = self._settings.model_uri
        files = await in_daemon_thread(lambda: resolve_model(uri))
        self._engine = engine = EngineClient.start(
            self._settings.engine,
            files,
            load_runner=self._load_runner,
            configure_logging=functools.partial(logs.configure, self._settings.log_format, self._settings.log_level),
        )
        engine.subscribe(self._metrics.step_told)
        text = await in_daemon_thread(lambda: _load_text(files))
        return _LoadedModel(engine, await engine.ready(), text)

    async def _serve(self, loading: "asyncio.Task[_LoadedModel]") -> int:
        # Slow to import, so that comes after the engine process was started.
        await in_daemon_thread(lambda: importlib.import_module("tidegate_server.serving"))
        from tidegate_server import serving

        policy = TermsPolicy(self._settings.tenant_header, self._settings.queue_timeout_s)
        state = serving.ApiState(self._lifecycle, self._metrics, policy)
        http = serving.HttpServer(serving.build_app(state), self._listeners.api)
        answering = asyncio.create_task(http.run())
        asked = asyncio.create_task(self._lifecycle.drain_asked())
        try:
            # Until the model is loaded the API answers 503 and says why.
            await asyncio.wait({loading, asked, answering}, return_when=asyncio.FIRST_COMPLETED)
            if self._lifecycle.state is not ServerState.STARTING:  # known earlier than `asked` is done
                log.info("stopped_while_starting")
                return EXIT_OK
            model = await loading
            state.service = serving.make_service(
                self._settings.model_name, model.engine, model.text, model.ready, self._metrics
            )
            self._became_ready(model.ready)
            return await self._until_the_end(model.engine, asked, answering)
        finally:
            asked.cancel()
            await self._stop_answering(http, answering)

    def _became_ready(self, ready: EngineReady) -> None:
        self._facts = replace(
            self._facts,
            device=ready.device,
            dtype=ready.dtype,
            kernels=ready.kernels,
            block_size=ready.block_size,
            num_kv_blocks=ready.num_kv_blocks,
            exact=ready.exact,
            inexact_ops=ready.inexact_ops,
        )
        self._lifecycle.became_ready()
        log.info(
            "ready",
            model=self._settings.model_name,
            port=self._listeners.api.getsockname()[1],
            ops_port=self._listeners.ops.getsockname()[1],
            device=ready.device,
            dtype=ready.dtype,
            kernels=ready.kernels,
            exact=ready.exact,
            max_model_len=ready.max_model_len,
            kv_tokens=ready.num_kv_blocks * ready.block_size,
            load_time_s=round(ready.load_time_s, 2),
        )

    # Ending.

    async def _until_the_end(
        self, engine: EngineClient, asked: "asyncio.Task[None]", answering: "asyncio.Task[None]"
    ) -> int:
        failed = asyncio.create_task(engine.failed.wait())
        drained = asyncio.create_task(self._drained(asked))
        watching = asyncio.create_task(self._watch_progress(engine))
        try:
            await asyncio.wait({failed, drained, answering}, return_when=asyncio.FIRST_COMPLETED)
            if drained.done():
                return await self._stopped(engine, drained.result())
            if failed.done():
                return await self._lost(engine)
            await answering  # raises what ended it
            raise AssertionError("the API port stopped without having been told to")
        finally:
            for task in (failed, drained, watching):
                task.cancel()
            await asyncio.gather(failed, drained, watching, return_exceptions=True)

    async def _watch_progress(self, engine: EngineClient) -> None:
        """Give an engine up that stands still.

        A pod that only failed its liveness probe would drain first, and wait for streams that never go on.
        """
        watch = ProgressWatch(LOOP_BEAT_S)
        before = Progress.MOVING
        while (progress := watch.look(engine.snapshot())) is not Progress.LOST:
            if progress is Progress.HUNG and before is Progress.MOVING:
                self._metrics.step_hung()
                log.error("engine_hung", because=_standstill(engine), next="it is given up unless it soon goes on")
            before = progress
            await asyncio.sleep(LOOP_BEAT_S)
        engine.give_up(_standstill(engine))

    async def _drained(self, asked: "asyncio.Task[None]") -> DrainEnd:
        await asyncio.shield(asked)
        log.info("draining", num_unfinished=self._lifecycle.num_unfinished)
        return await self._lifecycle.drain(self._settings.drain_notice_s, self._settings.drain_timeout_s)

    async def _stopped(self, engine: EngineClient, end: DrainEnd) -> int:
        match end:
            case DrainEnd.EMPTY:
                log.info("drained")
            case DrainEnd.TIMEOUT | DrainEnd.HURRIED:
                log.warning(
                    "drain_cut_short",
                    because=end.name.lower(),
                    num_unfinished=self._lifecycle.num_unfinished,
                    next="the unfinished requests end with an error",
                )
                await engine.shutdown(ENGINE_STOP_TIMEOUT_S)
                await self._lifecycle.emptied(LAST_WORDS_S)
        return EXIT_INTERRUPTED if end is DrainEnd.HURRIED else EXIT_OK

    async def _lost(self, engine: EngineClient) -> int:
        """The engine is gone: its streams have ended with an error, and Kubernetes restarts the container."""
        assert engine.failure is not None, "`failed` is set after `failure`"
        self._lifecycle.failed(engine.failure.reason)
        leave_message(self._settings.termination_message_path, engine.failure.code, engine.failure.reason)
        await self._lifecycle.emptied(LAST_WORDS_S)
        log.error("engine_lost", reason=engine.failure.reason, next="this process exits with code 1, to be restarted")
        return EXIT_FAILED

    async def _stop_answering(self, http: "HttpServer", answering: "asyncio.Task[None]") -> None:
        if not answering.done():
            await http.started()
            http.stop()
        await asyncio.gather(answering, return_exceptions=True)

    # What comes from outside: signals, the ops port, the engine's steps.

    def _hear_signals(self, early_signals: Sequence[signal.Signals]) -> None:
        handlers = {signal.SIGTERM: self._on_terminate, signal.SIGINT: self._on_interrupt}
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        for number in early_signals:
            handlers[number]()

    def _on_terminate(self) -> None:
        self._lifecycle.ask_to_drain()

    def _on_interrupt(self) -> None:
        self._num_interrupts += 1
        if self._num_interrupts == 1:
            log.info("interrupted", next="finishing the running requests; Ctrl-C again stops at once")
            self._lifecycle.ask_to_drain(skip_notice=True)
        else:
            self._lifecycle.hurry()

    async def _beat(self) -> None:
        """Show the liveness probe that the event loop runs."""
        while True:
            self._lifecycle.beat(time.monotonic())
            await asyncio.sleep(LOOP_BEAT_S)

    def _snapshot(self) -> EngineSnapshot:
        return EngineSnapshot() if self._engine is None else self._engine.snapshot()

    def _ops_sources(self) -> OpsSources:
        return OpsSources(
            view=self._view,
            facts=lambda: self._facts,
            metrics=self._metrics,
            model_name=self._settings.model_name,
            drain=self._drain_by_call,
            write_recording=self._write_recording_by_call,
            audit=self._audit_by_call,
        )

    def _view(self) -> PodView:
        lifecycle = self._lifecycle
        return PodView(
            state=lifecycle.state,
            because=lifecycle.because,
            snapshot=self._snapshot(),
            loop_beat_s=lifecycle.beat_s,
            now_s=time.monotonic(),
        )

    def _drain_by_call(self, wish: DrainRequest) -> DrainReply:
        """From an ops thread: hand the wish to the event loop. The answer tells what will be, not what was."""
        self._loop.call_soon_threadsafe(functools.partial(self._lifecycle.ask_to_drain, timeout_s=wish.timeout_s))
        state = self._lifecycle.state
        return DrainReply(
            state=state if state is ServerState.FAILED else ServerState.DRAINING,
            num_unfinished=self._lifecycle.num_unfinished,
        )

    def _write_recording_by_call(self) -> RecordingReply | None:
        """From an ops thread: hand the wish to the event loop; None when nothing is recorded."""
        directory, engine = self._settings.engine.record_dir, self._engine
        if directory is None or engine is None:
            return None
        path = str(recording_path(directory, "asked", datetime.now(UTC)))
        self._loop.call_soon_threadsafe(engine.write_recording, path)
        return RecordingReply(path=path)

    def _audit_by_call(self) -> bool:
        """From an ops thread: hand the wish to the event loop."""
        if self._engine is None:
            return False
        self._loop.call_soon_threadsafe(self._engine.audit)
        return True


def _standstill(engine: EngineClient) -> str:
    seen = engine.snapshot()
    return standstill(seen, time.monotonic() - seen.progress_at_s)


def _load_text(files: ModelFiles) -> "ModelText":
    from tidegate_server.text.model_text import load_model_text  # slow to import, so it is done in this thread

    return load_model_text(files)
