"""The step loop: commands in, a step, outputs out, until told to stop."""

import gc
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from tidegate_contract.admin import ServerState
from tidegate_server.engine.batch import LoadedRunner
from tidegate_server.engine.channel import Channel
from tidegate_server.engine.core import Engine
from tidegate_server.engine.faults import one_line
from tidegate_server.engine.heartbeat import HeartbeatPage
from tidegate_server.engine.launch import EngineLaunch
from tidegate_server.engine.messages import (
    AuditBlocks,
    EngineFailed,
    EngineReady,
    EngineStopped,
    Shutdown,
    WriteRecording,
)
from tidegate_server.engine.recording_writer import RecordingWriter, check_directory, head_of, write_first_hung_step
from tidegate_server.errors import InvalidSetting, StartError
from tidegate_server.settings import PreemptionMode

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# An idle engine wakes so often to say that it is alive.
IDLE_TICK_S: Final = 0.5
# About every 30 s of idling. It takes milliseconds, and finds nothing unless we have made a mistake.
AUDIT_EVERY_IDLE_TICKS: Final = 60

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1  # an EngineFailed went out before


def serve(
    engine: Engine, channel: Channel, heartbeat: HeartbeatPage, recordings: RecordingWriter | None = None
) -> None:
    """Step until `Shutdown` arrives; requests that are unfinished then end with `abort`.

    Args:
        recordings: writes them; None: nobody does.
    """

    def show() -> None:
        heartbeat.write(engine.snapshot())

    show()
    idle = not engine.has_work
    num_idle_ticks = 0
    while True:
        for command in channel.receive(IDLE_TICK_S if idle else 0.0):
            match command:
                case Shutdown():
                    engine.abort_all("the server shuts down")
                    last = engine.step()
                    show()
                    if last is not None:
                        channel.send(last)
                    channel.send(EngineStopped())
                    return
                case AuditBlocks():
                    engine.audit()
                case WriteRecording():
                    if recordings is not None:
                        recordings.write("asked", Path(command.path))
                case _:
                    engine.apply(command)
        output = engine.step(before_run=show)
        # The page first: who has read the last token of a request finds its blocks given back.
        show()
        # A step that drew no token is told too, since metrics count every step.
        if output is not None:
            channel.send(output)
        if recordings is not None:
            recordings.write_first_faults()
        idle = output is None
        if idle:
            num_idle_ticks += 1
            if num_idle_ticks % AUDIT_EVERY_IDLE_TICKS == 0:
                engine.audit()


def start_and_serve(launch: EngineLaunch, channel: Channel, heartbeat: HeartbeatPage) -> int:
    """Load the model, say so, serve; gives the exit status. Whatever goes wrong is told to the parent in one line."""
    try:
        started_s = time.monotonic()
        check_directory(launch.settings.record_dir)
        runner = _load_runner(launch)
        if launch.settings.preemption_mode is PreemptionMode.SWAP and runner.num_host_blocks == 0:
            log.warning("nowhere_to_swap", because="--swap-memory gives no host memory",
                        next="preempted requests are computed again")  # fmt: skip
        engine = Engine(runner, launch.settings, launch.files.revision)
        recordings = RecordingWriter(
            launch.settings.record_dir, head_of(runner, launch.settings, launch.files), engine.recorder, engine.faults
        )
        if launch.settings.record_dir is not None:
            watching = (recordings, heartbeat.read)
            threading.Thread(target=write_first_hung_step, args=watching, name="hang-watch", daemon=True).start()
        ready = ready_message(runner, time.monotonic() - started_s)
        # What the model brought stays for good: collections need not look at it again.
        gc.collect()
        gc.freeze()
        heartbeat.write(engine.snapshot())
        channel.send(ready)
        log.info("engine_ready", device=ready.device, dtype=ready.dtype, kernels=ready.kernels,
                 num_kv_blocks=ready.num_kv_blocks, load_time_s=round(ready.load_time_s, 3))  # fmt: skip
        try:
            serve(engine, channel, heartbeat, recordings)
        except Exception:
            recordings.write("crashed")
            raise
        return EXIT_OK
    except InvalidSetting as error:
        failed = EngineFailed(reason=error.problem, code=error.code, flag=error.flag)
    except StartError as error:
        failed = EngineFailed(reason=str(error), code=error.code)
    except Exception as error:
        failed = EngineFailed(reason=one_line(error), code="EngineCrashed")
        log.exception("engine_crashed", reason=failed.reason, next="the engine process exits and the pod restarts")
    last = replace(heartbeat.read(), state=ServerState.FAILED, progress_at_s=time.monotonic(), step_bound_s=0.0)
    heartbeat.write(last)
    channel.send(failed)
    return EXIT_FAILED


def ready_message(runner: LoadedRunner, load_time_s: float) -> EngineReady:
    """What the API process is told of a runner."""
    return EngineReady(
        max_model_len=runner.max_model_len,
        num_kv_blocks=runner.num_kv_blocks,
        block_size=runner.block_size,
        vocab_size=runner.vocab_size,
        device=runner.device,
        dtype=runner.dtype,
        kernels=runner.kernels,
        load_time_s=load_time_s,
        exact=None if runner.exactness is None else runner.exactness.is_exact,
        inexact_ops=() if runner.exactness is None else runner.exactness.inexact_ops,
        eos_token_ids=runner.eos_token_ids,
        lowered_from=runner.lowered_from,
    )


def _load_runner(launch: EngineLaunch) -> LoadedRunner:
    if launch.load_runner is not None:
        return launch.load_runner(launch.settings, launch.files)
    # Here, not above: torch takes seconds to import, and an engine with another runner does without it.
    from tidegate_server.model.runner import load_runner

    return load_runner(launch.settings, launch.files)
