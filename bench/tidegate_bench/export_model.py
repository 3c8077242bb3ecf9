"""A GGUF file to a Hugging Face folder of plain weights, so that every server under test reads the same model."""

import argparse
from collections.abc import Callable
from pathlib import Path

from tidegate_bench.launch import BenchError


def export_model(find_gguf: Callable[[], Path], folder: Path, dtype: str) -> Path:
    """De-quantise a model into `folder`: config.json, model.safetensors, tokenizer files and chat template.

    Args:
        find_gguf: gives a checkpoint that transformers can read; asked only when the folder is not there.
        folder: a finished export in it is kept as it is.
        dtype: `float32`, `bfloat16` or `float16`, what the weights are rounded to.

    Returns:
        `folder`.

    Raises:
        BenchError: torch, transformers, gguf or accelerate is missing here.
    """
    if folder.exists():
        return folder
    try:
        # Only an export needs them; a machine that measures a running endpoint does without.
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as failure:
        raise BenchError(f"exporting a model needs tidegate[server,dev]: {failure}") from None
    gguf = find_gguf()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=getattr(torch, dtype))
    # Both still say "quantised GGUF", which would make save_pretrained refuse and every reader look for a GGUF file.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    unfinished = folder.with_name(folder.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(**where).save_pretrained(unfinished)
    model.save_pretrained(unfinished)
    unfinished.rename(folder)
    return folder


def builtin_gguf() -> Path:
    """Where this machine keeps the server's embedded model.

    Raises:
        BenchError: the server is not installed here.
    """
    try:
        from tidegate_server.model_source import resolve_model
    except ImportError as failure:
        raise BenchError(f"the embedded model comes with tidegate[server]: {failure}; or give --model") from None
    return resolve_model("builtin://smollm2-135m-instruct").path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="where the exported model goes; kept if it is there")
    parser.add_argument("--gguf", type=Path, help="the GGUF file (default: the server's embedded model)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
