"""One forward pass over a batch: the engine's `LoadedRunner` on a real model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog
import torch
from torch import Tensor

from tidegate_server.engine.batch import Batch, BlockCopies, RequestId, RunnerBroken, SampledToken, ScheduledRequest
from tidegate_server.engine.exactness import Difference, Exactness, settle_exactness
from tidegate_server.engine.faults import OutOfMemory, one_line
from tidegate_server.errors import InvalidSetting
from tidegate_server.model.block_copier import BlockCopier
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.decoder import ForwardPass
from tidegate_server.model.exactness_probe import find_differences, scratch_cache
from tidegate_server.model.host_blocks import allocate_host_blocks
from tidegate_server.model.host_limits import available_memory_bytes
from tidegate_server.model.inputs import build_inputs
from tidegate_server.model.kv_cache import KvCache, KvCachePlan, allocate_kv_cache, plan_kv_cache
from tidegate_server.model.loading import load_model
from tidegate_server.model.placement import choose_device, free_memory_bytes, use_allowed_cpus
from tidegate_server.model.sampler import Draw, SamplerOps, sample
from tidegate_server.model.swap_speed import measure_swap_speed
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings, ExactMode

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunner:
    """Satisfies `engine.batch.LoadedRunner`; made by `load_runner`."""

    config: ModelConfig
    decoder: ForwardPass
    sampler_ops: SamplerOps
    kv_cache: KvCache
    block_copier: BlockCopier
    torch_device: torch.device
    max_model_len: int
    lowered_from: int | None
    num_kv_blocks: int
    block_size: int
    dtype: str
    kernels: str
    swap_bytes_per_s: float
    exactness: Exactness | None = None

    @property
    def num_host_blocks(self) -> int:
        return self.block_copier.num_host_blocks

    @property
    def block_bytes(self) -> int:
        return self.kv_cache.blocks[0].nbytes

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
            try:
                inputs = build_inputs(batch, self.block_size, self.torch_device)
                self.block_copier.before_writing(_written_blocks(batch, self.block_size))
                logits = self.decoder.forward(inputs, self.kv_cache)
                draws = [Draw(request, request.sampling) for request in batch.scheduled if request.sampling is not None]
                if draws:
                    return sample(logits, draws, self.eos_token_ids, self.sampler_ops)
                if self.torch_device.type == "cuda":
                    torch.cuda.synchronize(self.torch_device)  # else the step would end before it is computed
                return ()
            finally:
                self.block_copier.wait()

    @torch.inference_mode()
    def copy_blocks(self, copies: BlockCopies) -> BlockCopies:
        """See `engine.batch.Runner.copy_blocks`."""
        with _device_faults_named():
            failed = self.block_copier.copy(copies)
            if failed:
                self.block_copier.wait()  # what is left of the batch may be nothing, and then no `run` waits
            return failed


def _written_blocks(batch: Batch, block_size: int) -> Iterator[int]:
    """Those that the step puts new tokens into."""
    for request in batch.scheduled:
        yield from request.block_table[request.start // block_size : -(-request.stop // block_size)]


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
    model = load_model(settings, files, device, num_threads)
    free_bytes, free_host_bytes = free_memory_bytes(device), available_memory_bytes()
    plan = plan_kv_cache(model.config, settings, model.dtype, device.type, free_bytes, free_host_bytes)
    if plan.lowered_from is not None:
        log.warning(
            "max_model_len_lowered",
            max_model_len=plan.max_model_len,
            trained_for=plan.lowered_from,
            because=f"{plan.num_blocks} KV blocks hold no more; --kv-cache-memory or --num-kv-blocks gives more",
        )
    kv_cache = _allocate(model.config, plan, settings, model.dtype, device)
    block_copier = BlockCopier(kv_cache.blocks, _allocate_on_host(plan, kv_cache))
    runner = ModelRunner(
        config=model.config,
        decoder=model.build_decoder(plan.max_model_len),
        sampler_ops=model.sampler_ops,
        kv_cache=kv_cache,
        block_copier=block_copier,
        torch_device=device,
        max_model_len=plan.max_model_len,
        lowered_from=plan.lowered_from,
        num_kv_blocks=plan.num_blocks,
        block_size=settings.block_size,
        dtype=str(model.dtype).removeprefix("torch."),
        kernels=model.kernels,
        swap_bytes_per_s=measure_swap_speed(block_copier, plan.num_blocks, plan.block_bytes),
    )
    _warm_up(runner)
    runner = replace(runner, exactness=_probed(runner, settings.exact))
    log.info(
        "model_loaded",
        model=files.name,
        architecture=model.config.architecture,
        device=runner.device,
        dtype=runner.dtype,
        weights=model.weights,
        kernels=runner.kernels,
        num_threads=num_threads,
        max_model_len=runner.max_model_len,
        num_kv_blocks=runner.num_kv_blocks,
        num_host_blocks=runner.num_host_blocks,
        swap_bytes_per_s=round(runner.swap_bytes_per_s),
    )
    return runner


def _allocate(
    config: ModelConfig, plan: KvCachePlan, settings: EngineSettings, dtype: torch.dtype, device: torch.device
) -> KvCache:
    try:
        return allocate_kv_cache(config, plan, settings.block_size, dtype, device)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise InvalidSetting(
            "--kv-cache-memory", f"{plan.num_blocks * plan.block_bytes} bytes cannot be allocated; give less"
        ) from error


def _allocate_on_host(plan: KvCachePlan, kv_cache: KvCache) -> Tensor:
    try:
        return allocate_host_blocks(plan.num_host_blocks, kv_cache.blocks)
    except (OSError, RuntimeError) as error:
        raise InvalidSetting(
            "--swap-memory",
            f"{plan.num_host_blocks * plan.block_bytes} bytes of host memory cannot be had ({error}); give less, or 0",
        ) from error


def _warm_up(runner: ModelRunner) -> None:
    """Run one step on the null block: kernels compile and libraries start before the server says it is ready."""
    request = ScheduledRequest(
        request_id=RequestId("warm-up"), start=0, token_ids=(0,), block_table=(0,), sampling=None, seed=0
    )
    runner.run(Batch(step=0, scheduled=(request,)))


def _probed(runner: ModelRunner, mode: ExactMode) -> Exactness | None:
    def probe() -> Iterator[Difference]:
        return find_differences(replace(runner, kv_cache=scratch_cache(runner.kv_cache)))

    return settle_exactness(mode, probe, runner.kernels)


# What torch says where no memory is left on a CPU; it has an exception of its own for devices only.
_CPU_OUT_OF_MEMORY = "DefaultCPUAllocator: "


@contextmanager
def _device_faults_named() -> Iterator[None]:
    """Tell a lost device, and one without memory, from a bad request: after a CUDA error every later call fails too."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(one_line(error)) from error
    except torch.AcceleratorError as error:
        raise RunnerBroken(str(error).splitlines()[0]) from error
    except RuntimeError as error:
        if _CPU_OUT_OF_MEMORY in str(error):
            raise OutOfMemory(one_line(error)) from error
        raise
