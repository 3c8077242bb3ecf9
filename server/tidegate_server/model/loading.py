"""From model files to a decoder on the kernels of this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
import torch

from tidegate_kernels.cpu.library import Library, load_library, missing_because
from tidegate_kernels.ops import select_ops
from tidegate_server.errors import InvalidSetting, ModelNotSupported
from tidegate_server.gguf_file import open_gguf
from tidegate_server.model.checkpoint import Checkpoint
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.cpu_decoder import CpuDecoder
from tidegate_server.model.cpu_weights import SUPPORTED_DTYPES, pack_weights
from tidegate_server.model.decoder import Decoder, ForwardPass
from tidegate_server.model.gguf_config import read_gguf_config
from tidegate_server.model.gguf_weights import GgufCheckpoint
from tidegate_server.model.hf_config import read_hf_config
from tidegate_server.model.linear import find_row_plan
from tidegate_server.model.placement import choose_dtype, cpus_to_pin
from tidegate_server.model.safetensors_weights import open_safetensors
from tidegate_server.model.sampler import SamplerOps
from tidegate_server.model.sampler_cpu import CpuSamplerOps
from tidegate_server.model.sampler_torch import TorchSamplerOps
from tidegate_server.model.weights import load_weights
from tidegate_server.model_source import ModelFiles, ModelFormat
from tidegate_server.settings import EngineSettings, Quantization

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights in memory; the decoder is made once the length of the longest request is known."""

    config: ModelConfig
    dtype: torch.dtype
    kernels: str  # for people
    weights: str  # in which numbers, for people
    build_decoder: Callable[[int], ForwardPass]
    """From the longest request, in tokens; takes the weights over."""
    sampler_ops: SamplerOps


def load_model(settings: EngineSettings, files: ModelFiles, device: torch.device, num_threads: int) -> LoadedModel:
    """Read a checkpoint into the form that this device's kernels compute with.

    Raises:
        InvalidSetting: a setting that this model or machine cannot meet.
        ModelNotFound: the files are missing or damaged.
        ModelNotSupported: the files hold a model that the decoder does not compute.
    """
    with _opened(files) as (config, checkpoint):
        has_cpu_kernels = settings.cpu_isa != "none" and load_library() is not None
        dtype = choose_dtype(settings.dtype, config, device, has_cpu_kernels)
        library = _start_library(settings.cpu_isa, dtype, num_threads) if device.type == "cpu" else None
        if library is not None:
            return _load_for_cpu(library, checkpoint, config, dtype, settings.quantization)
        if settings.quantization is Quantization.INT8:
            raise InvalidSetting(
                "--quantization", "int8 was asked for, but only the CPU kernels compute with it; use auto or none"
            )
        return _load_for_torch(checkpoint, config, dtype, device)


@contextmanager
def _opened(files: ModelFiles) -> Iterator[tuple[ModelConfig, Checkpoint]]:
    match files.format:
        case ModelFormat.GGUF:
            gguf = open_gguf(files.path)
            config = read_gguf_config(gguf)
            yield config, GgufCheckpoint(gguf, config)
        case ModelFormat.SAFETENSORS:
            config = read_hf_config(files.path)
            with open_safetensors(files.path, config) as checkpoint:
                yield config, checkpoint


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


def _load_for_cpu(
    library: Library, checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype, quantization: Quantization
) -> LoadedModel:
    weights = pack_weights(library, checkpoint, config, dtype, quantization)
    return LoadedModel(
        config,
        dtype,
        kernels=f"cpu-{library.isa()}",
        weights=", ".join(sorted(packing.name.lower() for packing in weights.packings)),
        build_decoder=lambda num_positions: CpuDecoder(config, weights, library, num_positions),
        sampler_ops=CpuSamplerOps(library),
    )


def _load_for_torch(
    checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> LoadedModel:
    try:
        ops = select_ops(device.type)
    except RuntimeError as error:
        raise InvalidSetting("--device", str(error)) from error
    try:
        weights = load_weights(checkpoint, config, dtype, device)
    except torch.OutOfMemoryError as error:
        raise ModelNotSupported(
            f"{checkpoint.path}: its weights do not fit into the GPU's memory; use a smaller model or a larger GPU"
        ) from error
    row_plan = find_row_plan(weights.linears())
    log.info("rows_planned", rows=row_plan.name)
    return LoadedModel(
        config,
        dtype,
        kernels=ops.name,
        weights=str(dtype).removeprefix("torch."),
        build_decoder=lambda num_positions: Decoder(config, weights, ops, row_plan, num_positions),
        sampler_ops=TorchSamplerOps(),
    )
