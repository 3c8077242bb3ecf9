"""One forward pass over a batch: the engine's `LoadedRunner` on a real model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
import torch

from tidegate_kernels.cpu.library import Library, load_library, missing_because
from tidegate_kernels.ops import select_ops
from tidegate_server.engine.batch import Batch, RequestId, RunnerBroken, SampledToken, ScheduledRequest
from tidegate_server.errors import InvalidSetting, ModelNotSupported
from tidegate_server.gguf_file import open_gguf
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.cpu_decoder import SUPPORTED_DTYPES, CpuDecoder
from tidegate_server.model.decoder import Decoder, ForwardPass
from tidegate_server.model.gguf_config import read_gguf_config
from tidegate_server.model.gguf_weights import load_gguf
from tidegate_server.model.hf_config import read_hf_config
from tidegate_server.model.inputs import build_inputs
from tidegate_server.model.kv_cache import KvCache, KvCachePlan, allocate_kv_cache, plan_kv_cache
from tidegate_server.model.linear import find_row_plan
from tidegate_server.model.placement import (
    choose_device,
    choose_dtype,
    cpus_to_pin,
    free_memory_bytes,
    use_allowed_cpus,
)
from tidegate_server.model.safetensors_weights import load_safetensors
from tidegate_server.model.sampler import Draw, sample
from tidegate_server.model.weights import DecoderWeights
from tidegate_server.model_source import ModelFiles, ModelFormat
from tidegate_server.settings import EngineSettings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunner:
    """Satisfies `engine.batch.LoadedRunner`; made by `load_runner`."""

    config: ModelConfig
    decoder: ForwardPass
    kv_cache: KvCache
    torch_device: torch.device
    max_model_len: int
    num_kv_blocks: int
    block_size: int
    dtype: str
    kernels: str

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.config.eos_token_ids

    @property
    def device(self) -> str:
        return self.torch_device.type

    @torch.inference_mode()
    def run(self, batch: Batch) -> tuple[SampledToken, ...]:
        """See `engine.batch.Runner.run`."""
        with _device_faults_named():
            inputs = build_inputs(batch, self.block_size, self.torch_device)
            logits = self.decoder.forward(inputs, self.kv_cache)
            draws = [Draw(request, request.sampling) for request in batch.scheduled if request.sampling is not None]
            return sample(logits, draws, self.eos_token_ids, self.decoder.argmax) if draws else ()


@torch.inference_mode()
def load_runner(settings: EngineSettings, files: ModelFiles) -> ModelRunner:
    """Load a model and allocate its cache, ready to run.

    Raises:
        InvalidSetting: a setting that this model or machine cannot meet.
        ModelNotFound: the files are missing or damaged.
        ModelNotSupported: the files hold a model that the decoder does not compute.
    """
    device = choose_device(settings.device)
    num_threads = use_allowed_cpus()
    config, dtype, weights = _load_weights(settings, files, device)
    library = _start_library(settings.cpu_isa, dtype, num_threads) if device.type == "cpu" else None
    plan = plan_kv_cache(config, settings, dtype, device.type, free_memory_bytes(device))
    if plan.lowered_from is not None:
        log.warning(
            "max_model_len_lowered",
            max_model_len=plan.max_model_len,
            trained_for=plan.lowered_from,
            because=f"{plan.num_blocks} KV blocks hold no more; --kv-cache-memory or --num-kv-blocks gives more",
        )
    decoder, kernels = _build_decoder(config, weights, library, device, plan.max_model_len)
    runner = ModelRunner(
        config=config,
        decoder=decoder,
        kv_cache=_allocate(config, plan, settings, dtype, device),
        torch_device=device,
        max_model_len=plan.max_model_len,
        num_kv_blocks=plan.num_blocks,
        block_size=settings.block_size,
        dtype=str(dtype).removeprefix("torch."),
        kernels=kernels,
    )
    _warm_up(runner)
    log.info(
        "model_loaded",
        model=files.name,
        architecture=config.architecture,
        device=runner.device,
        dtype=runner.dtype,
        kernels=runner.kernels,
        num_threads=num_threads,
        max_model_len=runner.max_model_len,
        num_kv_blocks=runner.num_kv_blocks,
    )
    return runner


def _start_library(isa: str, dtype: torch.dtype, num_threads: int) -> Library | None:
    """The CPU kernels on threads of their own; None where torch has to serve, which is logged."""
    if isa == "none":
        return None
    library = load_library()
    if library is None or dtype not in SUPPORTED_DTYPES:
        because = missing_because() or f"they compute in float32 and bfloat16, not in {dtype}"
        if isa != "auto":
            raise InvalidSetting("--cpu-isa", f"{isa} was asked for, but there are no CPU kernels: {because}")
        log.warning("cpu_kernels_missing", because=because, next="torch computes instead, several times as slow")
        return None
    try:
        library.start(None if isa == "auto" else isa, num_threads, cpus_to_pin(num_threads))
    except ValueError as error:
        raise InvalidSetting("--cpu-isa", str(error)) from error
    # What is left to torch is little; a second pool of threads would spin beside the library's.
    torch.set_num_threads(1)
    return library


def _build_decoder(
    config: ModelConfig, weights: DecoderWeights, library: Library | None, device: torch.device, num_positions: int
) -> tuple[ForwardPass, str]:
    """The decoder, which takes the weights over, and the name of the kernels that it runs on."""
    if library is not None:
        return CpuDecoder(config, weights, library, num_positions), f"cpu-{library.isa()}"
    try:
        ops = select_ops(device.type)
    except RuntimeError as error:
        raise InvalidSetting("--device", str(error)) from error
    row_plan = find_row_plan(weights.linears())
    log.info("rows_planned", rows=row_plan.name)
    return Decoder(config, weights, ops, row_plan, num_positions), ops.name


def _load_weights(
    settings: EngineSettings, files: ModelFiles, device: torch.device
) -> tuple[ModelConfig, torch.dtype, DecoderWeights]:
    has_cpu_kernels = settings.cpu_isa != "none" and load_library() is not None
    try:
        match files.format:
            case ModelFormat.GGUF:
                gguf = open_gguf(files.path)
                config = read_gguf_config(gguf)
                dtype = choose_dtype(settings.dtype, config, device, has_cpu_kernels)
                return config, dtype, load_gguf(gguf, config, dtype, device)
            case ModelFormat.SAFETENSORS:
                config = read_hf_config(files.path)
                dtype = choose_dtype(settings.dtype, config, device, has_cpu_kernels)
                return config, dtype, load_safetensors(files.path, config, dtype, device)
    except torch.OutOfMemoryError as error:
        raise ModelNotSupported(
            f"{files.uri}: its weights do not fit into the GPU's memory; use a smaller model or a larger GPU"
        ) from error


def _allocate(
    config: ModelConfig, plan: KvCachePlan, settings: EngineSettings, dtype: torch.dtype, device: torch.device
) -> KvCache:
    try:
        return allocate_kv_cache(config, plan, settings.block_size, dtype, device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise InvalidSetting(
            "--kv-cache-memory", f"{plan.num_blocks * plan.block_bytes} bytes cannot be allocated; give less"
        ) from error


def _warm_up(runner: ModelRunner) -> None:
    """Run one step on the null block: kernels compile and libraries start before the server says it is ready."""
    request = ScheduledRequest(
        request_id=RequestId("warm-up"), start=0, token_ids=(0,), block_table=(0,), sampling=None, seed=0
    )
    runner.run(Batch(step=0, scheduled=(request,)))


@contextmanager
def _device_faults_named() -> Iterator[None]:
    """Tell a lost device from a bad request: after a CUDA error every later call fails too."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except torch.AcceleratorError as error:
        raise RunnerBroken(str(error).splitlines()[0]) from error
