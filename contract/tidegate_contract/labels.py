"""Ports, probe paths, label and annotation keys: the names both sides write into Kubernetes objects."""

from typing import Final

# The custom resource.
GROUP: Final = "tidegate.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
SHORT_NAME: Final = "infs"

# Ports of a pod. The API port speaks the OpenAI protocol, the ops port is for probes, metrics, load, drain and audit.
API_PORT: Final = 8000
OPS_PORT: Final = 9000
API_PORT_NAME: Final = "http"
OPS_PORT_NAME: Final = "ops"

# Paths on the ops port.
STARTUP_PATH: Final = "/startupz"
READY_PATH: Final = "/readyz"
LIVE_PATH: Final = "/livez"
METRICS_PATH: Final = "/metrics"
LOAD_PATH: Final = "/load"
DRAIN_PATH: Final = "/drain"
RECORDING_PATH: Final = "/recording"
AUDIT_PATH: Final = "/audit"

# Labels on every object that the operator makes for one InferenceService.
NAME_LABEL: Final = "app.kubernetes.io/name"
INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
SERVICE_LABEL: Final = "tidegate.dev/inferenceservice"
NAME_VALUE: Final = "tidegate"
MANAGED_BY_VALUE: Final = "tidegate-operator"

# Annotations.
TEMPLATE_HASH_ANNOTATION: Final = "tidegate.dev/template-hash"  # of the pod template as rendered
RENDERER_VERSION_ANNOTATION: Final = "tidegate.dev/renderer-version"  # of the code that rendered it
POD_TEMPLATE_ANNOTATION: Final = "tidegate.dev/pod-template"  # the pod template as rendered, to be applied again
SPEC_HASH_ANNOTATION: Final = "tidegate.dev/spec-hash"  # of what the user wrote that the template came from
ROLL_ANNOTATION: Final = "tidegate.dev/roll"  # on the InferenceService: a new value asks for a new rendering
POD_DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"

# The container that serves, and the field manager of every server-side apply.
SERVER_CONTAINER: Final = "server"
FIELD_MANAGER: Final = "tidegate-operator"
