"""The Service in front of the pods: clients reach ready pods only."""

from tidegate_contract import labels
from tidegate_operator.cluster import SERVICE, Manifest
from tidegate_operator.objects.metadata import child, pod_selector
from tidegate_operator.platform import Platform
from tidegate_operator.resource import InferenceService


def build_service(resource: InferenceService) -> Manifest:
    service = resource.spec.service
    spec: Manifest = {
        "type": service.type.value,
        "selector": pod_selector(resource.key.name),
        "ports": [
            {
                "name": labels.API_PORT_NAME,
                "port": service.port,
                "targetPort": labels.API_PORT_NAME,
                "protocol": "TCP",
            }
        ],
    }
    return child(SERVICE, resource, annotations=dict(service.annotations)) | {"spec": spec}


def service_url(resource: InferenceService, platform: Platform) -> str:
    """The base URL for an OpenAI client inside the cluster."""
    host = f"{resource.key.name}.{resource.key.namespace}.svc.{platform.cluster_domain}"
    port = resource.spec.service.port
    return f"http://{host}/v1" if port == 80 else f"http://{host}:{port}/v1"
