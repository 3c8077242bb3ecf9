"""The InferenceService as typed spec: the source that the CRD is generated from.

Field descriptions and limits stand in the annotations and reach users through `kubectl explain`; rules that join
several fields stand beside them as CEL. The schema sets no defaults, on purpose: a default that a later version
changes would otherwise change stored objects, and with them running pods.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from tidegate_operator.cluster import INFERENCE_SERVICE, Key, Manifest, ObjectRef
from tidegate_operator.errors import InvalidResource
from tidegate_operator.part import Part, Rule
from tidegate_operator.pass_through import EnvVar, PassThrough, Volume, VolumeMount, keyed_list
from tidegate_operator.quantity import Quantity, above_zero
from tidegate_operator.resource_status import InferenceServiceStatus, decode_status

NAME_MAX_LENGTH = 52  # leaves room for what a Deployment's pods add within a label's 63 characters


class DataType(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class PreemptionMode(StrEnum):
    AUTO = "auto"
    RECOMPUTE = "recompute"
    SWAP = "swap"
    TAIL = "tail"


class PreemptionPolicy(StrEnum):
    CHEAPEST = "cheapest"
    NEWEST_FIRST = "newest-first"
    LONGEST_FIRST = "longest-first"
    MOST_PREEMPTED_LAST = "most-preempted-last"


class ScalingMode(StrEnum):
    ACTIVE = "Active"
    ADVISORY = "Advisory"
    PAUSED = "Paused"


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class PullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


PositiveInt = Annotated[int, Meta(ge=1, le=2_000_000_000)]
ContextLength = Annotated[int, Meta(ge=2, le=2_000_000_000)]  # a token of prompt and one of output
Seconds = Annotated[int, Meta(ge=1, le=86_400)]
BlockSize = Annotated[int, Meta(ge=1, le=256, extra_json_schema={"enum": [1, 2, 4, 8, 16, 32, 64, 128, 256]})]
ReplicaCount = Annotated[int, Meta(ge=0, le=10_000)]
Revision = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9._/-]+$")]
ServedName = Annotated[str, Meta(min_length=1, max_length=128)]
ImageName = Annotated[str, Meta(min_length=1, max_length=512)]
ObjectName = Annotated[str, Meta(min_length=1, max_length=253)]


class SecretKey(Part, frozen=True, kw_only=True):
    """A key of a Secret in the same namespace."""

    name: Annotated[ObjectName, Meta(description="Name of the Secret.")]
    key: Annotated[ObjectName, Meta(description="Key within it. Default: token.")] = "token"


class CacheSpec(Part, frozen=True, kw_only=True):
    """Where downloads are kept."""

    claim_name: Annotated[
        ObjectName,
        Meta(description="PersistentVolumeClaim mounted at /cache; ReadWriteMany when there are several replicas."),
    ]


class ModelSpec(Part, frozen=True, kw_only=True):
    """Which model is served, and from where."""

    RULES = (
        Rule(
            "self.uri.matches('^(builtin://[a-z0-9][a-z0-9._-]*|hf://[^/@\\\\s]+/[^/@\\\\s]+"
            "|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[^\\\\s]*)?|file:///[^\\\\s]+)$')",
            "model.uri must be builtin://NAME, hf://ORG/NAME, pvc://CLAIM/PATH or file:///PATH",
        ),
        Rule(
            "!has(self.revision) || self.uri.startsWith('hf://')",
            "model.revision needs an hf:// uri; other sources have no revisions",
        ),
        Rule(
            "!has(self.tokenSecretRef) || self.uri.startsWith('hf://')",
            "model.tokenSecretRef needs an hf:// uri; other sources take no token",
        ),
        Rule(
            "!self.uri.startsWith('pvc://') || !self.uri.split('/').exists(part, part == '..')",
            "model.uri must not contain '..'",
        ),
    )

    uri: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            description="builtin://NAME (inside the image), hf://ORG/NAME (Hugging Face hub), pvc://CLAIM/PATH "
            "(a PersistentVolumeClaim, mounted read-only), or file:///PATH (in the image or a mounted volume).",
        ),
    ]
    revision: Annotated[Revision | None, Meta(description="Branch, tag or commit of an hf:// model.")] = None
    name: Annotated[ServedName | None, Meta(description="Name that clients ask for. Default: the model's own.")] = None
    token_secret_ref: Annotated[
        SecretKey | None, Meta(description="Token for a gated hf:// model, given to the pod as HF_TOKEN.")
    ] = None
    cache: Annotated[
        CacheSpec | None, Meta(description="Keeps downloads between pods. Default: a scratch volume per pod.")
    ] = None


class EngineSpec(Part, frozen=True, kw_only=True):
    """How a pod computes; what is not given here, the server chooses."""

    RULES = (
        Rule(
            "!(has(self.kvCacheMemory) && has(self.numKvBlocks))",
            "give engine.kvCacheMemory or engine.numKvBlocks, not both",
        ),
        above_zero("engine.kvCacheMemory", "2Gi or 1.5Gi"),
    )

    dtype: Annotated[DataType | None, Meta(description="Number format of weights and KV cache. Default: auto.")] = None
    max_model_len: Annotated[
        ContextLength | None, Meta(description="Tokens of prompt and output together. Default: the model's context.")
    ] = None
    max_num_seqs: Annotated[PositiveInt | None, Meta(description="Most requests computed at once. Default: 64.")] = None
    max_num_batched_tokens: Annotated[
        PositiveInt | None, Meta(description="Most tokens computed in one step. Default: 512.")
    ] = None
    block_size: Annotated[BlockSize | None, Meta(description="Tokens per KV block, a power of two. Default: 16.")] = (
        None
    )
    kv_cache_memory: Annotated[
        Quantity | None, Meta(description="Memory for KV blocks, such as 2Gi. Default: a share of what is free.")
    ] = None
    num_kv_blocks: Annotated[PositiveInt | None, Meta(description="Number of KV blocks, instead of their memory.")] = (
        None
    )
    prefix_caching: Annotated[
        bool | None, Meta(description="Keep the KV blocks of known prompt beginnings. Default: true.")
    ] = None
    swap_memory: Annotated[
        Quantity | None,
        Meta(
            description="Host memory for KV blocks that left the device, such as 2Gi. Default: 4Gi beside a GPU, or a "
            "quarter of the free memory if that is less; none on a CPU."
        ),
    ] = None
    preemption_mode: Annotated[
        PreemptionMode | None,
        Meta(description="How a request is preempted: auto is the cheapest of the other ways. Default: auto."),
    ] = None
    preemption_policy: Annotated[
        PreemptionPolicy | None, Meta(description="Who is preempted first. Default: cheapest.")
    ] = None
    extra_args: Annotated[
        tuple[Annotated[str, Meta(max_length=1024)], ...],
        Meta(max_length=64, description="Further flags for `tidegate serve`; they win over the fields above."),
    ] = ()


class GpuSpec(Part, frozen=True, kw_only=True):
    """The accelerator of one pod."""

    RULES = (
        Rule(
            "self.count <= 1",
            "resources.gpu.count must be 0 or 1: one model does not span several GPUs yet; use replicas instead",
        ),
    )

    count: Annotated[int, Meta(ge=0, le=64, description="GPUs per pod: 0 or 1; 0 means the CPU backend.")]
    resource_name: Annotated[
        str,
        Meta(
            max_length=253,
            pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
            description="Extended resource to ask for. Default: nvidia.com/gpu.",
        ),
    ] = "nvidia.com/gpu"


class ResourcesSpec(Part, frozen=True, kw_only=True):
    """What one pod asks its node for."""

    RULES = (
        above_zero("resources.cpu", "2, 500m or, in quotes, '0.5'"),
        above_zero("resources.memory", "24Gi or 1.5Gi"),
    )

    gpu: Annotated[GpuSpec | None, Meta(description="Without it the pod computes on the CPU.")] = None
    cpu: Annotated[
        Quantity | None,
        Meta(
            description="Cores requested, and the number of compute threads, such as 2 or 500m, fractions in quotes; "
            "not a limit, so probes are not throttled."
        ),
    ] = None
    memory: Annotated[Quantity | None, Meta(description="Memory, such as 24Gi: requested, and the limit.")] = None


class ScalingTargets(Part, frozen=True, kw_only=True):
    """How full replicas should be."""

    utilization: Annotated[
        float,
        Meta(ge=0.05, le=1, description="Share of a replica's requests or KV tokens in use to aim at. Default: 0.65."),
    ] = 0.65
    queue_time_seconds: Annotated[
        float,
        Meta(ge=0.05, le=3600, description="90th percentile of queue time above which replicas are added. Default: 2."),
    ] = 2.0


class ScalingWindows(Part, frozen=True, kw_only=True):
    """How long demand must last before replicas follow it."""

    RULES = (
        Rule(
            "!has(self.panicSeconds) || self.panicSeconds <= (has(self.upSeconds) ? self.upSeconds : 60)",
            "autoscaling.windows.panicSeconds must not exceed windows.upSeconds (default 60)",
        ),
    )

    up_seconds: Annotated[Seconds, Meta(description="Demand is averaged over this to scale up. Default: 60.")] = 60
    panic_seconds: Annotated[
        Seconds,
        Meta(description="Shorter window, used when it asks for twice the replicas; at most upSeconds. Default: 10."),
    ] = 10
    down_seconds: Annotated[
        Seconds, Meta(description="The highest demand of this time must allow fewer replicas. Default: 300.")
    ] = 300


class AutoscalingSpec(Part, frozen=True, kw_only=True):
    """Replicas that follow demand."""

    RULES = (
        Rule(
            "!has(self.minReplicas) || self.minReplicas >= 1",
            "autoscaling.minReplicas must be at least 1: scaling from zero needs the gateway, which is not there yet; "
            "to park a service set replicas: 0 instead of autoscaling",
        ),
        Rule(
            "(has(self.minReplicas) ? self.minReplicas : 1) <= self.maxReplicas",
            "autoscaling.minReplicas (default 1) must not exceed autoscaling.maxReplicas",
        ),
    )

    max_replicas: Annotated[int, Meta(ge=1, le=10_000, description="Never more replicas than this.")]
    min_replicas: Annotated[
        int, Meta(ge=0, le=10_000, description="Never fewer replicas than this; at least 1. Default: 1.")
    ] = 1
    targets: Annotated[ScalingTargets, Meta(description="How full replicas should be.")] = ScalingTargets()
    windows: Annotated[ScalingWindows, Meta(description="How fast replicas follow.")] = ScalingWindows()
    mode: Annotated[
        ScalingMode,
        Meta(
            description="Active scales; Advisory only says in status what it would do; Paused keeps the replicas as "
            "they are. Default: Active."
        ),
    ] = ScalingMode.ACTIVE


class DrainSpec(Part, frozen=True, kw_only=True):
    """How a pod leaves."""

    notice_seconds: Annotated[
        int,
        Meta(ge=0, le=600, description="New requests are still taken while endpoints catch up. Default: 5."),
    ] = 5
    timeout_seconds: Annotated[
        int, Meta(ge=0, le=86_400, description="Then running requests may take this long to finish. Default: 300.")
    ] = 300


class ServiceSpec(Part, frozen=True, kw_only=True):
    """The address in front of the pods."""

    type: Annotated[ServiceType, Meta(description="Type of the Service. Default: ClusterIP.")] = ServiceType.CLUSTER_IP
    port: Annotated[int, Meta(ge=1, le=65_535, description="Port of the Service. Default: 80.")] = 80
    annotations: Annotated[dict[str, str], Meta(description="Annotations of the Service.")] = msgspec.field(
        default_factory=dict
    )


class LocalObjectReference(Part, frozen=True, kw_only=True):
    """An object in the same namespace."""

    name: Annotated[ObjectName, Meta(description="Its name.")]


class PodTemplateSpec(Part, frozen=True, kw_only=True):
    """What a platform team adds to every pod; entries replace the operator's own of the same name or path."""

    labels: Annotated[dict[str, str], Meta(description="Further labels.")] = msgspec.field(default_factory=dict)
    annotations: Annotated[dict[str, str], Meta(description="Further annotations.")] = msgspec.field(
        default_factory=dict
    )
    node_selector: Annotated[dict[str, str], Meta(description="Labels that a node must carry.")] = msgspec.field(
        default_factory=dict
    )
    tolerations: Annotated[tuple[PassThrough, ...], Meta(max_length=64, description="As in a pod.")] = ()
    affinity: Annotated[PassThrough | None, Meta(description="As in a pod.")] = None
    env: Annotated[
        tuple[EnvVar, ...],
        keyed_list("name", max_length=128, description="Environment of the server, as in a container."),
    ] = ()
    volumes: Annotated[tuple[Volume, ...], keyed_list("name", max_length=64, description="As in a pod.")] = ()
    volume_mounts: Annotated[
        tuple[VolumeMount, ...],
        keyed_list("mountPath", max_length=64, description="Mounts of the server, as in a container."),
    ] = ()
    runtime_class_name: Annotated[ObjectName | None, Meta(description="As in a pod.")] = None
    priority_class_name: Annotated[ObjectName | None, Meta(description="As in a pod.")] = None
    service_account_name: Annotated[
        ObjectName | None, Meta(description="An existing ServiceAccount to use instead of one made for this service.")
    ] = None


class DisruptionBudgetSpec(Part, frozen=True, kw_only=True):
    """The PodDisruptionBudget, which lets a node drain take one pod at a time."""

    enabled: Annotated[bool, Meta(description="Default: true.")] = True


def _kept_by(condition: str, *, volume: str, path: str, message: str) -> Rule:
    """The pod template may replace what the operator puts into a pod, but not what another field of the spec says."""
    template = "self.podTemplate"
    return Rule(
        f"!({condition}) || !has({template}) || "
        f"((!has({template}.volumes) || {template}.volumes.all(v, v.name != '{volume}')) && "
        f"(!has({template}.volumeMounts) || {template}.volumeMounts.all(m, !(m.mountPath in ['{path}', '{path}/']))))",
        message,
    )


class InferenceServiceSpec(Part, frozen=True, kw_only=True):
    """What the user wants."""

    RULES = (
        Rule(
            "!(has(self.replicas) && has(self.autoscaling))",
            "give replicas (a fixed number) or autoscaling (minReplicas to maxReplicas), not both",
        ),
        _kept_by(
            "self.model.uri.startsWith('pvc://')",
            volume="model",
            path="/models",
            message="podTemplate must leave the volume 'model' and the mount at /models to the pvc:// model",
        ),
        _kept_by(
            "has(self.model.cache)",
            volume="cache",
            path="/cache",
            message="podTemplate must leave the volume 'cache' and the mount at /cache to model.cache",
        ),
    )

    model: Annotated[ModelSpec, Meta(description="Which model is served, and from where.")]
    engine: Annotated[EngineSpec, Meta(description="How a pod computes.")] = EngineSpec()
    resources: Annotated[ResourcesSpec, Meta(description="What one pod asks its node for.")] = ResourcesSpec()
    replicas: Annotated[
        ReplicaCount | None,
        Meta(description="A fixed number of pods; 0 parks the service. Default: 1 without autoscaling."),
    ] = None
    autoscaling: Annotated[
        AutoscalingSpec | None, Meta(description="Replicas that follow demand, instead of a fixed number.")
    ] = None
    drain: Annotated[DrainSpec, Meta(description="How a pod leaves.")] = DrainSpec()
    startup_timeout_seconds: Annotated[
        Seconds, Meta(description="A pod that has not loaded its model by then is started again. Default: 600.")
    ] = 600
    image: Annotated[ImageName | None, Meta(description="Server image. Default: the operator's setting.")] = None
    image_pull_policy: Annotated[
        PullPolicy | None, Meta(description="When the image is pulled. Default: the operator's setting.")
    ] = None
    image_pull_secrets: Annotated[
        tuple[LocalObjectReference, ...], Meta(max_length=16, description="Secrets for a private registry.")
    ] = ()
    service: Annotated[ServiceSpec, Meta(description="The address in front of the pods.")] = ServiceSpec()
    pod_disruption_budget: Annotated[DisruptionBudgetSpec, Meta(description="Protection from node drains.")] = (
        DisruptionBudgetSpec()
    )
    pod_template: Annotated[PodTemplateSpec, Meta(description="What a platform team adds to every pod.")] = (
        PodTemplateSpec()
    )


@dataclass(frozen=True, slots=True)
class InferenceService:
    """One resource as read from the API server."""

    key: Key
    uid: str
    generation: int
    annotations: dict[str, str]
    spec: InferenceServiceSpec
    raw_spec: Manifest  # as the user wrote it: what the spec hash is made from
    status: InferenceServiceStatus

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef(INFERENCE_SERVICE, self.key.namespace, self.key.name, self.uid)


def decode_resource(manifest: Manifest) -> InferenceService:
    """Read a resource from the API server's JSON.

    Unknown fields are left alone: the CRD may be newer than this operator, and the API server has checked them.

    Raises:
        InvalidResource: the spec does not fit the types, named by the path of the bad field.
    """
    metadata = manifest["metadata"]
    return InferenceService(
        key=Key(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        annotations=metadata.get("annotations") or {},
        spec=_decode_spec(manifest.get("spec") or {}),
        raw_spec=manifest.get("spec") or {},
        status=decode_status(manifest),
    )


def _decode_spec(spec: Manifest) -> InferenceServiceSpec:
    try:
        return msgspec.convert(spec, InferenceServiceSpec)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        raise InvalidResource("spec" + where.rstrip("`"), problem) from error
