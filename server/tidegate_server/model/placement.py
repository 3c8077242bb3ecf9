"""Where the model runs and in which number format: settings and machine to a device and a dtype."""

import os

import torch

from tidegate_server.errors import InvalidSetting
from tidegate_server.model.config import ModelConfig
from tidegate_server.model.host_limits import available_memory_bytes, usable_cpus

# What OMP_NUM_THREADS leaves, before anybody here asks for another number.
MOST_TORCH_THREADS = torch.get_num_threads()

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(wanted: str) -> torch.device:
    """The device that `--device` means on this machine.

    Raises:
        InvalidSetting: an unknown name, or a GPU where torch sees none.
    """
    has_gpu = torch.cuda.is_available()
    match wanted:
        case "auto":
            return torch.device("cuda", 0) if has_gpu else torch.device("cpu")
        case "cpu":
            return torch.device("cpu")
        case "cuda" if has_gpu:
            return torch.device("cuda", 0)
        case "cuda":
            raise InvalidSetting(
                "--device", "cuda was asked for, but torch sees no GPU; use cpu, or give the pod a GPU"
            )
        case _:
            raise InvalidSetting("--device", f"{wanted} is unknown; use auto, cpu or cuda")


def choose_dtype(wanted: str, config: ModelConfig, device: torch.device, has_cpu_kernels: bool) -> torch.dtype:
    """The number format that `--dtype` means for this checkpoint on this device.

    On a CPU `auto` keeps bfloat16 weights as they are for the CPU kernels, which add up in fp32; torch is slow at
    bfloat16 there, and float16 has no kernels.

    Raises:
        InvalidSetting: an unknown name.
    """
    if wanted == "auto":
        own = DTYPES[config.dtype]
        is_kept = device.type != "cpu" or (has_cpu_kernels and own is torch.bfloat16)
        return own if is_kept else torch.float32
    if wanted not in DTYPES:
        raise InvalidSetting("--dtype", f"{wanted} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[wanted]


def use_allowed_cpus() -> int:
    """Give torch as many threads as this process may run, and tell how many.

    torch alone counts the machine's cores, whatever the container's limit; but never more than OMP_NUM_THREADS, which
    it read when it was imported.
    """
    num_threads = min(MOST_TORCH_THREADS, usable_cpus())
    torch.set_num_threads(num_threads)
    return num_threads


def cpus_to_pin(num_threads: int) -> tuple[int, ...] | None:
    """The CPUs that threads should stay on, one each; None where this process may run on more.

    There, two pods of one machine would choose the same CPUs, and leave the others idle.
    """
    allowed = sorted(os.sched_getaffinity(0))
    return tuple(allowed) if len(allowed) == num_threads else None


def free_memory_bytes(device: torch.device) -> int:
    """What can still be allocated on the device."""
    if device.type == "cpu":
        return available_memory_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    return free
