"""The command line of a pod: fields of the resource to flags of `tidegate serve`."""

from collections.abc import Iterator

from tidegate_contract import labels
from tidegate_operator.quantity import number
from tidegate_operator.resource import EngineSpec, InferenceServiceSpec, ModelSpec

MODELS_MOUNT_PATH = "/models"

HF_SCHEME = "hf://"
PVC_SCHEME = "pvc://"


def server_args(spec: InferenceServiceSpec) -> list[str]:
    """Arguments of the container, only for what the user gave: the server knows its own defaults.

    The user's extra arguments come last, so they win.
    """
    gpu = spec.resources.gpu
    args = [
        f"--model={model_argument(spec.model)}",
        f"--device={'cuda' if gpu is not None and gpu.count > 0 else 'cpu'}",
        f"--port={labels.API_PORT}",
        f"--ops-port={labels.OPS_PORT}",
        f"--drain-notice={spec.drain.notice_seconds}",
        f"--drain-timeout={spec.drain.timeout_seconds}",
        "--log-format=json",
    ]
    if spec.model.name is not None:
        args.append(f"--served-model-name={spec.model.name}")
    return [*args, *_engine_args(spec.engine), *spec.engine.extra_args]


def model_argument(model: ModelSpec) -> str:
    """The model as the server takes it: a claim is a folder by then, a revision a part of the URI."""
    if model.uri.startswith(PVC_SCHEME):
        _, path = split_claim(model.uri)
        return f"{MODELS_MOUNT_PATH}/{path}".rstrip("/")
    if model.uri.startswith(HF_SCHEME) and model.revision is not None:
        return f"{model.uri}@{model.revision}"
    return model.uri


def split_claim(uri: str) -> tuple[str, str]:
    """`pvc://claim/some/path` to the claim's name and the path within it, which may be empty."""
    claim, _, path = uri.removeprefix(PVC_SCHEME).partition("/")
    return claim, path.strip("/")


def _engine_args(engine: EngineSpec) -> Iterator[str]:
    if engine.dtype is not None:
        yield f"--dtype={engine.dtype.value}"
    if engine.max_model_len is not None:
        yield f"--max-model-len={engine.max_model_len}"
    if engine.max_num_seqs is not None:
        yield f"--max-num-seqs={engine.max_num_seqs}"
    if engine.max_num_batched_tokens is not None:
        yield f"--max-num-batched-tokens={engine.max_num_batched_tokens}"
    if engine.block_size is not None:
        yield f"--block-size={engine.block_size}"
    if engine.kv_cache_memory is not None:
        yield f"--kv-cache-memory={int(number(engine.kv_cache_memory))}"  # in bytes: the server has other units
    if engine.num_kv_blocks is not None:
        yield f"--num-kv-blocks={engine.num_kv_blocks}"
    if engine.prefix_caching is False:
        yield "--no-prefix-caching"
    if engine.swap_memory is not None:
        yield f"--swap-memory={int(number(engine.swap_memory))}"
    if engine.preemption_policy is not None:
        yield f"--preemption-policy={engine.preemption_policy.value}"
    if engine.preemption_mode is not None:
        yield f"--preemption-mode={engine.preemption_mode.value}"
