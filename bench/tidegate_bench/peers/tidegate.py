"""Tidegate itself, from the environment that runs the benchmark."""

import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path

from tidegate_bench.bytecode import compile_environment
from tidegate_bench.launch import SERVED_NAME, BenchError, Launch, ServerOptions
from tidegate_contract.labels import LOAD_PATH

BLOCK_SIZE = 16


class Tidegate:
    """`tidegate serve`."""

    name = "tidegate"

    def __init__(self, extra_arguments: tuple[str, ...] = ()) -> None:
        self._extra_arguments = extra_arguments

    def install(self, model: Path, dtype: str) -> str:
        if importlib.util.find_spec("tidegate_server") is None:
            raise BenchError("tidegate's server is not installed in this environment: run `make install`")
        compile_environment()
        return version("tidegate")

    def launch(self, options: ServerOptions) -> Launch:
        arguments = {
            "--model": str(options.model),
            "--served-model-name": SERVED_NAME,
            "--host": "127.0.0.1",
            "--port": str(options.port),
            "--ops-port": str(options.ops_port),
            "--device": "cpu",
            "--dtype": options.dtype,
            "--max-model-len": str(options.max_model_len),
            "--block-size": str(BLOCK_SIZE),
            "--num-kv-blocks": str(num_blocks(options.kv_tokens, BLOCK_SIZE)),
        }
        flat = [word for pair in arguments.items() for word in pair]
        return Launch(
            argv=(sys.executable, "-m", "tidegate_server", "serve", *flat, *self._extra_arguments),
            load_url=f"http://127.0.0.1:{options.ops_port}{LOAD_PATH}",
        )


def num_blocks(kv_tokens: int, block_size: int) -> int:
    """Blocks that hold `kv_tokens`."""
    return -(-kv_tokens // block_size)
