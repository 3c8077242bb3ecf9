"""`tidegate bench` on an engine whose model counts: `python -m tests.server.bench.counting_bench FLAGS`."""

import os
import sys

from tests.server.engine.counting_runner import CountingRunner
from tidegate_server.bench.command import run
from tidegate_server.model_source import ModelFiles
from tidegate_server.settings import EngineSettings


def load_runner(settings: EngineSettings, files: ModelFiles) -> CountingRunner:
    return CountingRunner(
        num_kv_blocks=settings.num_kv_blocks or 10_000,
        block_size=settings.block_size,
        max_model_len=4096,
        vocab_size=100_000,
    )


if __name__ == "__main__":
    from tests.server.bench.counting_bench import load_runner as named_load_runner  # by a name the engine process finds

    sys.exit(run(sys.argv[1:], os.environ, named_load_runner))
