"""The identity the pods run under: one that can do nothing, with no token mounted."""

from tidegate_operator.cluster import SERVICE_ACCOUNT, Manifest
from tidegate_operator.objects.metadata import child
from tidegate_operator.resource import InferenceService


def build_service_account(resource: InferenceService) -> Manifest:
    return child(SERVICE_ACCOUNT, resource) | {"automountServiceAccountToken": False}
