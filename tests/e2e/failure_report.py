"""What a person would look at first when an end-to-end test fails: resources, events, logs."""

from tests.e2e.kube import Kube, KubectlError

LINES_PER_LOG = 60


def failure_report(kube: Kube, namespaces: tuple[str, ...], operator_namespace: str) -> str:
    """The state of the cluster as text; a part that cannot be had says why."""
    parts = [
        _part(kube, "get", "nodes", "-o", "wide"),
        _part(kube, "get", "inferenceservices,deployments,pods,services", "-A", "-o", "wide"),
    ]
    for namespace in namespaces:
        parts.append(_part(kube, "describe", "inferenceservices", "-n", namespace))
        parts.append(_part(kube, "get", "events", "-n", namespace, "--sort-by=.lastTimestamp"))
        parts += [_logs(kube, pod, namespace) for pod in _pods(kube, namespace)]
    parts += [_logs(kube, pod, operator_namespace) for pod in _pods(kube, operator_namespace)]
    return "\n\n".join(parts)


def _part(kube: Kube, *args: str) -> str:
    try:
        out = kube.run(*args, timeout_s=30)
    except KubectlError as problem:
        out = f"({problem})"
    return f"$ kubectl {' '.join(args)}\n{out}"


def _pods(kube: Kube, namespace: str) -> list[str]:
    try:
        return kube.run("get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].metadata.name}").split()
    except KubectlError:
        return []


def _logs(kube: Kube, pod: str, namespace: str) -> str:
    return _part(kube, "logs", "-n", namespace, pod, f"--tail={LINES_PER_LOG}", "--all-containers", "--prefix")
