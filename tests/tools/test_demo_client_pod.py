"""The pod that chats is taken wherever ours are."""

from tools.demo.client_pod import POD, allowed_everywhere


def test_client_pod_keeps_the_restricted_pod_security_standard() -> None:
    spec = allowed_everywhere()["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    (container,) = spec["containers"]
    assert container["name"] == POD  # the name that `kubectl run` gives, by which the patch finds its container
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
