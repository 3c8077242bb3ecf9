"""The API server takes the CRD, and refuses bad resources with our sentences."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.kube import Json, Kube, KubectlError
from tests.operator.objects.test_manifests import EVERYTHING

pytestmark = pytest.mark.control_plane


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param({"model": {"uri": "s3://bucket/x"}}, "model.uri must be builtin://NAME", id="a scheme too early"),
        pytest.param(
            {"model": {"uri": "hf://name-without-org"}}, "model.uri must be", id="a hub name without its owner"
        ),
        pytest.param({"model": {"uri": "pvc://claim/../etc"}}, "model.uri must not contain '..'", id="a way out"),
        pytest.param(
            {"model": {"uri": "file:///m", "revision": "main"}},
            "model.revision needs an hf:// uri",
            id="a revision of a file",
        ),
        pytest.param(
            {"model": {"uri": "file:///m", "tokenSecretRef": {"name": "x"}}},
            "model.tokenSecretRef needs an hf:// uri",
            id="a token for a file",
        ),
        pytest.param({"replicas": 1, "autoscaling": {"maxReplicas": 2}}, "give replicas", id="fixed and scaled"),
        pytest.param(
            {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
            "autoscaling.minReplicas (default 1) must not exceed autoscaling.maxReplicas",
            id="minimum above maximum",
        ),
        pytest.param(
            {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}},
            "autoscaling.minReplicas must be at least 1",
            id="scaling from zero",
        ),
        pytest.param(
            {"engine": {"kvCacheMemory": "1Gi", "numKvBlocks": 5}},
            "engine.kvCacheMemory or engine.numKvBlocks",
            id="both sizes",
        ),
        pytest.param({"engine": {"blockSize": 24}}, "spec.engine.blockSize", id="a block size that is no power of two"),
        pytest.param({"engine": {"dtype": "int3"}}, "spec.engine.dtype", id="an unknown number format"),
        pytest.param({"resources": {"gpu": {"count": 2}}}, "resources.gpu.count must be 0 or 1", id="two GPUs"),
        pytest.param({"resources": {"gpu": {"count": 0.5}}}, "spec.resources.gpu.count", id="half a GPU"),
        pytest.param(
            {"resources": {"memory": "lots"}}, "resources.memory must be a Kubernetes quantity", id="no quantity at all"
        ),
        pytest.param(
            {"resources": {"cpu": -1}}, "resources.cpu must be a Kubernetes quantity above zero", id="less than no core"
        ),
        pytest.param(
            {"resources": {"cpu": "0"}}, "resources.cpu must be a Kubernetes quantity above zero", id="no core"
        ),
        pytest.param({"resources": {"cpu": 0.5}}, "spec.resources.cpu", id="a fraction without quotes"),
        pytest.param(
            {"engine": {"kvCacheMemory": "2GiB"}},
            "engine.kvCacheMemory must be a Kubernetes quantity",
            id="another unit",
        ),
        pytest.param(
            {"autoscaling": {"maxReplicas": 2, "windows": {"panicSeconds": 61}}},
            "autoscaling.windows.panicSeconds must not exceed windows.upSeconds",
            id="a panic longer than the window",
        ),
        pytest.param(
            {"podTemplate": {"env": [{"name": "A", "value": 1}]}}, "spec.podTemplate.env[0].value", id="a bare number"
        ),
        pytest.param(
            {"podTemplate": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
            "spec.podTemplate.env[1]: Duplicate value",
            id="a variable given twice",
        ),
        pytest.param({"podTemplate": {"volumes": [{"emptyDir": {}}]}}, "volumes[0].name", id="a volume without a name"),
        pytest.param(
            {"model": {"uri": "pvc://models"}, "podTemplate": {"volumes": [{"name": "model", "emptyDir": {}}]}},
            "podTemplate must leave the volume 'model'",
            id="another volume in the model's place",
        ),
        pytest.param(
            {
                "model": {"uri": "hf://org/name", "cache": {"claimName": "downloads"}},
                "podTemplate": {"volumeMounts": [{"name": "disk", "mountPath": "/cache/"}]},
            },
            "podTemplate must leave the volume 'cache'",
            id="another mount in the cache's place",
        ),
        pytest.param({"replicas": -1}, "spec.replicas", id="fewer than no pods"),
        pytest.param({"drain": {"noticeSeconds": -1}}, "spec.drain.noticeSeconds", id="a negative notice"),
        pytest.param({"enigne": {}}, 'unknown field "spec.enigne"', id="a misspelt field"),
        pytest.param({"model": {}}, "spec.model.uri", id="no model"),
    ],
)
def test_bad_resource_is_refused_with_the_reason(apply: Callable[..., Json], spec: dict[str, Any], told: str) -> None:
    with pytest.raises(KubectlError) as refused:
        apply(**spec)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("a" * 53, "at most 52 characters", id="too long"),
        pytest.param("1chat", "begin with a letter", id="a digit first"),
        pytest.param("my.chat", "lower-case letters, digits", id="a dot"),
    ],
)
def test_bad_name_is_refused_with_the_reason(apply: Callable[..., Json], name: str, told: str) -> None:
    with pytest.raises(KubectlError) as refused:
        apply(name)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="the least"),
        pytest.param(EVERYTHING, id="everything"),
        pytest.param({"resources": {"cpu": 2, "memory": 2147483648}}, id="quantities as numbers"),
        pytest.param({"resources": {"cpu": "0.5", "memory": "1.5Gi"}}, id="quantities with fractions"),
        pytest.param({"engine": {"kvCacheMemory": "1.5Gi"}}, id="a fraction of memory for the cache"),
        pytest.param({"podTemplate": {"volumes": [{"name": "cache", "emptyDir": {}}]}}, id="a cache of one's own"),
        pytest.param({"model": {"uri": "pvc://claim"}}, id="a whole claim"),
        pytest.param({"replicas": 0}, id="parked"),
        pytest.param({"autoscaling": {"maxReplicas": 1, "windows": {"upSeconds": 5}}}, id="a short window alone"),
    ],
)
def test_good_resource_is_taken(apply: Callable[..., Json], spec: dict[str, Any]) -> None:
    apply(**spec)


def test_longest_name_is_taken(apply: Callable[..., Json]) -> None:
    apply("a" * 52)


def test_table_shows_what_a_person_asks_first(kube: Kube, namespace: str, apply: Callable[..., Json]) -> None:
    apply()
    header, *_ = kube.run("get", "infs", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "MODEL", "READY", "REPLICAS", "DESIRED", "URL", "REASON", "AGE"]
    assert "chat" in kube.run("get", "tidegate", "-n", namespace)


def test_fields_are_explained(kube: Kube) -> None:
    assert "Default: 300" in kube.run("explain", "infs.spec.autoscaling.windows.downSeconds")


def test_scale_subresource_changes_fixed_replicas(kube: Kube, namespace: str, apply: Callable[..., Json]) -> None:
    apply(replicas=1)
    kube.run("scale", "infs/chat", "--replicas=3", "-n", namespace)
    assert kube.get("infs", "chat", namespace)["spec"]["replicas"] == 3


def test_scale_subresource_is_refused_while_the_autoscaler_scales(
    kube: Kube, namespace: str, apply: Callable[..., Json]
) -> None:
    apply(autoscaling={"maxReplicas": 2})
    with pytest.raises(KubectlError, match="not both"):
        kube.run("scale", "infs/chat", "--replicas=3", "-n", namespace)
