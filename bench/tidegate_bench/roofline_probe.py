"""Measures what this machine can do at best: memory read bandwidth and GEMM speed, as JSON on stdout.

A script by itself: it runs under a server's own Python, with that server's torch.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable

import torch

READ_BYTES = 1 << 30  # well past any cache
GEMM_SIZE = 2048
TRIES = 5


def best_time_s(work: Callable[[], object]) -> float:
    """The shortest of a few tries after one that does not count: a ceiling is what nobody disturbed."""
    work()
    times_s = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start)
    return min(times_s)


def read_bytes_per_s() -> float:
    """Reading one large array once, by the sum of its elements, the cheapest thing that looks at all of them."""
    array = torch.ones(READ_BYTES // 4, dtype=torch.float32)
    return READ_BYTES / best_time_s(array.sum)


def gemm_flop_per_s(dtype: torch.dtype) -> float:
    left = torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype)
    right = torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype)
    return 2 * GEMM_SIZE**3 / best_time_s(lambda: left @ right)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = {
        "read_bytes_per_s": read_bytes_per_s(),
        "gemm_flop_per_s": gemm_flop_per_s(getattr(torch, arguments.dtype)),
        "torch": torch.__version__,
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
