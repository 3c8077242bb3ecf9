"""llama.cpp's server, from a binary and a GGUF file that the caller has built."""

import subprocess
from pathlib import Path

from tidegate_bench.launch import SERVED_NAME, BenchError, Launch, ServerOptions

SLOTS = 8  # more slots share the same cores and each gets slower


class LlamaServer:
    """`llama-server`. Its precision is the GGUF file's, not the run's `--dtype`: choose a file that matches."""

    name = "llama-server"

    def __init__(self, binary: Path, gguf: Path, extra_arguments: tuple[str, ...] = ()) -> None:
        self._binary = binary
        self._gguf = gguf
        self._extra_arguments = extra_arguments

    def install(self, model: Path, dtype: str) -> str:
        if not self._gguf.is_file():
            raise BenchError(f"--llama-gguf {self._gguf}: no such file")
        try:
            answer = subprocess.run([str(self._binary), "--version"], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as failure:
            raise BenchError(f"--llama-server {self._binary}: {failure}") from None
        # It prints "version: 1234 (abcdef)" among notes on its devices.
        lines = (answer.stdout + answer.stderr).splitlines()
        return next((line.removeprefix("version:").strip() for line in lines if line.startswith("version:")), "unknown")

    def launch(self, options: ServerOptions) -> Launch:
        arguments = {
            "--model": str(self._gguf),
            "--alias": SERVED_NAME,
            "--host": "127.0.0.1",
            "--port": str(options.port),
            "--threads": str(options.num_cpus),
            "--parallel": str(SLOTS),
            "--ctx-size": str(options.kv_tokens),  # of all slots together
        }
        flat = [word for pair in arguments.items() for word in pair]
        return Launch(argv=(str(self._binary), *flat, *self._extra_arguments))
