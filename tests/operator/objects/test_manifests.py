"""What is built for a resource: valid Kubernetes, restricted, and faithful to every field."""

from typing import Any

import kubernetes_validate
import pytest

from tests.operator.make import NOW, PLATFORM, resource
from tests.operator.test_status import SETTLED
from tidegate_contract import labels
from tidegate_operator.cluster import Manifest
from tidegate_operator.objects.pod_template import GRACE_MARGIN_S, USER_ID, build_pod_template
from tidegate_operator.observed import Observed
from tidegate_operator.plan import plan

EVERYTHING: dict[str, Any] = {
    "model": {
        "uri": "hf://org/name",
        "revision": "main",
        "name": "served",
        "tokenSecretRef": {"name": "hf"},
        "cache": {"claimName": "downloads"},
    },
    "engine": {
        "dtype": "bfloat16",
        "maxModelLen": 4096,
        "maxNumSeqs": 32,
        "maxNumBatchedTokens": 1024,
        "blockSize": 32,
        "kvCacheMemory": "2Gi",
        "prefixCaching": False,
        "preemptionMode": "tail",
        "preemptionPolicy": "newest-first",
        "swapMemory": "1Gi",
        "extraArgs": ["--seed=7"],
    },
    "resources": {"gpu": {"count": 1}, "cpu": "1500m", "memory": "8Gi"},
    "replicas": 2,
    "drain": {"noticeSeconds": 3, "timeoutSeconds": 30},
    "startupTimeoutSeconds": 300,
    "image": "registry/image:2",
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "pull"}],
    "service": {"type": "NodePort", "port": 8080, "annotations": {"a": "b"}},
    "podTemplate": {
        "labels": {"team": "x", labels.SERVICE_LABEL: "stolen"},
        "annotations": {"note": "y"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "env": [{"name": "X", "value": "1"}],
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
    },
}
RESOURCES = {
    "the least": {},
    "everything": EVERYTHING,
    "a claim": {"model": {"uri": "pvc://models/a/b"}, "autoscaling": {"maxReplicas": 3}},
}


def children(**spec: Any) -> dict[str, Manifest]:
    planned = plan(resource(**spec), Observed(), PLATFORM, NOW)
    return {child["kind"]: child for child in planned.children}


def pod_of(**spec: Any) -> Manifest:
    spec_: Manifest = build_pod_template(resource(**spec), PLATFORM)["spec"]
    return spec_


def server_of(**spec: Any) -> Manifest:
    container: Manifest = pod_of(**spec)["containers"][0]
    return container


@pytest.mark.parametrize("spec", RESOURCES.values(), ids=RESOURCES.keys())
def test_every_manifest_is_valid_kubernetes(spec: dict[str, Any]) -> None:
    built = children(**spec)
    assert list(built) == ["ServiceAccount", "Service", "PodDisruptionBudget", "Deployment"]
    for manifest in built.values():
        kubernetes_validate.validate(manifest, "1.35", strict=True)


@pytest.mark.parametrize("spec", RESOURCES.values(), ids=RESOURCES.keys())
def test_every_child_is_owned_without_blocking_its_owners_deletion(spec: dict[str, Any]) -> None:
    for manifest in children(**spec).values():
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("owner-uid", True, False)
        assert "finalizers" not in manifest["metadata"]


def test_every_engine_field_becomes_its_flag_and_extra_arguments_come_last() -> None:
    assert server_of(**EVERYTHING)["args"] == [
        "serve",
        "--model=hf://org/name@main",
        "--device=cuda",
        "--port=8000",
        "--ops-port=9000",
        "--drain-notice=3",
        "--drain-timeout=30",
        "--log-format=json",
        "--served-model-name=served",
        "--dtype=bfloat16",
        "--max-model-len=4096",
        "--max-num-seqs=32",
        "--max-num-batched-tokens=1024",
        "--block-size=32",
        "--kv-cache-memory=2147483648",
        "--no-prefix-caching",
        "--swap-memory=1073741824",
        "--preemption-policy=newest-first",
        "--preemption-mode=tail",
        "--seed=7",
    ]


@pytest.mark.parametrize(
    ("uri", "argument"),
    [
        ("builtin://smollm2-135m-instruct", "builtin://smollm2-135m-instruct"),
        ("file:///models/m.gguf", "file:///models/m.gguf"),
        ("hf://org/name", "hf://org/name"),
        ("pvc://claim/some/folder", "/models/some/folder"),
        ("pvc://claim/", "/models"),
        ("pvc://claim", "/models"),
    ],
)
def test_model_argument(uri: str, argument: str) -> None:
    assert f"--model={argument}" in server_of(model={"uri": uri})["args"]


def test_claim_is_mounted_read_only() -> None:
    pod = pod_of(model={"uri": "pvc://claim/x"})
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "claim", "readOnly": True}} in pod["volumes"]
    mount = {"name": "model", "mountPath": "/models", "readOnly": True}
    assert mount in pod["containers"][0]["volumeMounts"]


def test_without_a_gpu_the_pod_computes_on_the_cpu_with_its_own_cores() -> None:
    server = server_of(resources={"cpu": "1500m"})
    assert "--device=cpu" in server["args"]
    assert {"name": "OMP_NUM_THREADS", "value": "2"} in server["env"]
    assert server["resources"] == {"requests": {"cpu": "1500m"}}


@pytest.mark.parametrize(("cpu", "threads"), [(4, "4"), ("0.5", "1"), ("2500m", "3"), ("8", "8"), ("1e1", "10")])
def test_threads_follow_the_cores(cpu: int | str, threads: str) -> None:
    assert {"name": "OMP_NUM_THREADS", "value": threads} in server_of(resources={"cpu": cpu})["env"]


def test_gpu_is_asked_for_and_its_taint_tolerated() -> None:
    pod = pod_of(resources={"gpu": {"count": 1, "resourceName": "amd.com/gpu"}})
    assert pod["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "1"}
    assert {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]


@pytest.mark.parametrize("spec", RESOURCES.values(), ids=RESOURCES.keys())
def test_pods_meet_the_restricted_pod_security_standard(spec: dict[str, Any]) -> None:
    pod = pod_of(**spec)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == USER_ID > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert not pod["enableServiceLinks"]
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_grace_period_covers_notice_and_time_out() -> None:
    assert pod_of(drain={"noticeSeconds": 3, "timeoutSeconds": 30})["terminationGracePeriodSeconds"] == (
        3 + 30 + GRACE_MARGIN_S
    )


def test_startup_probe_gives_the_whole_time_out() -> None:
    probe = server_of(startupTimeoutSeconds=301)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 301


def test_probes_use_the_contracts_paths_on_the_ops_port() -> None:
    server = server_of()
    paths = {name: server[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": labels.STARTUP_PATH, "readiness": labels.READY_PATH, "liveness": labels.LIVE_PATH}
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {labels.API_PORT_NAME: labels.API_PORT, labels.OPS_PORT_NAME: labels.OPS_PORT}
    assert all(server[f"{name}Probe"]["httpGet"]["port"] == labels.OPS_PORT_NAME for name in paths)


def test_users_labels_cannot_take_the_selectors_place() -> None:
    found = build_pod_template(resource(**EVERYTHING), PLATFORM)["metadata"]["labels"]
    assert found["team"] == "x"
    assert found[labels.SERVICE_LABEL] == "chat"


def test_overrides_reach_the_pod() -> None:
    pod = pod_of(**EVERYTHING)
    server = pod["containers"][0]
    assert (server["image"], server["imagePullPolicy"]) == ("registry/image:2", "Always")
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert (pod["runtimeClassName"], pod["priorityClassName"]) == ("nvidia", "high")
    assert {"key": "k", "operator": "Exists"} in pod["tolerations"]
    assert {"name": "X", "value": "1"} in server["env"]
    assert {"name": "extra", "mountPath": "/extra"} in server["volumeMounts"]
    assert {"name": "extra", "emptyDir": {}} in pod["volumes"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "downloads"}} in pod["volumes"]
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    assert token in server["env"]


def test_fixed_replicas_are_applied_and_scaled_ones_only_with_a_new_deployment() -> None:
    assert children(replicas=3)["Deployment"]["spec"]["replicas"] == 3
    assert children()["Deployment"]["spec"]["replicas"] == 1
    subject = resource(autoscaling={"maxReplicas": 3})
    assert plan(subject, Observed(), PLATFORM, NOW).children[-1]["spec"]["replicas"] == 1
    assert "replicas" not in plan(subject, Observed(deployment=SETTLED), PLATFORM, NOW).children[-1]["spec"]


@pytest.mark.parametrize(
    "name", ["HOME", "HF_HOME", "TRITON_CACHE_DIR", "OMP_NUM_THREADS", "HF_TOKEN"], ids=lambda name: name
)
def test_users_environment_replaces_ours_of_the_same_name(name: str) -> None:
    theirs = {"name": name, "value": "theirs"}
    env = server_of(**(EVERYTHING | {"podTemplate": {"env": [theirs]}}))["env"]
    assert [entry for entry in env if entry["name"] == name] == [theirs]


@pytest.mark.parametrize(("volume", "path"), [("tmp", "/tmp"), ("shm", "/dev/shm"), ("cache", "/cache")])
def test_users_volumes_and_mounts_replace_ours_of_the_same_name_or_path(volume: str, path: str) -> None:
    own, disk = {"name": volume, "emptyDir": {"sizeLimit": "9Gi"}}, {"name": "disk", "emptyDir": {}}
    mount = {"name": "disk", "mountPath": path}
    pod = pod_of(podTemplate={"volumes": [own, disk], "volumeMounts": [mount]})
    assert [found for found in pod["volumes"] if found["name"] == volume] == [own]
    assert [found for found in pod["containers"][0]["volumeMounts"] if found["mountPath"] == path] == [mount]


def test_quantities_reach_the_pod_as_kubernetes_writes_them() -> None:
    resources = server_of(resources={"cpu": 2, "memory": 2147483648})["resources"]
    assert resources == {"requests": {"cpu": "2", "memory": "2147483648"}, "limits": {"memory": "2147483648"}}


@pytest.mark.parametrize(
    ("given", "size_bytes"), [("1.5Gi", 1610612736), (4096, 4096), ("1e9", 10**9), ("2G", 2 * 10**9)]
)
def test_memory_of_the_kv_cache_is_any_quantity(given: int | str, size_bytes: int) -> None:
    assert f"--kv-cache-memory={size_bytes}" in server_of(engine={"kvCacheMemory": given})["args"]


def test_pods_carry_the_hash_of_the_template_they_are_made_from() -> None:
    deployment = children()["Deployment"]
    stamped = deployment["spec"]["template"]["metadata"]["annotations"][labels.TEMPLATE_HASH_ANNOTATION]
    assert stamped == deployment["metadata"]["annotations"][labels.TEMPLATE_HASH_ANNOTATION]


def test_service_leads_to_the_api_port_under_the_port_asked_for() -> None:
    spec = children(**EVERYTHING)["Service"]["spec"]
    assert spec["type"] == "NodePort"
    assert spec["selector"] == {labels.SERVICE_LABEL: "chat"}
    assert spec["ports"] == [{"name": "http", "port": 8080, "targetPort": "http", "protocol": "TCP"}]


def test_own_service_account_and_budget_can_be_left_out() -> None:
    built = children(podTemplate={"serviceAccountName": "theirs"}, podDisruptionBudget={"enabled": False})
    assert list(built) == ["Service", "Deployment"]
    assert built["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == "theirs"
