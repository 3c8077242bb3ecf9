"""Every values case of the chart renders to objects that Kubernetes takes and that agree with the contract."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from subprocess import CompletedProcess

import kubernetes_validate
import pytest
import yaml

from tests.chart.conftest import CHART, NAMESPACE, Manifest, Render
from tidegate_contract import labels
from tidegate_operator.cluster import CHILD_KINDS, Kind
from tidegate_operator.crd import custom_resource_definition
from tidegate_operator.settings import ENVIRONMENT_PREFIX, OperatorSettings, read_settings

CASES = sorted((CHART / "ci").glob("*.yaml"))
KUBERNETES_VERSION = "1.35"

Helm = Callable[..., CompletedProcess[str]]


@pytest.fixture(params=CASES, ids=lambda path: path.stem)
def objects(request: pytest.FixtureRequest, render: Render) -> list[Manifest]:
    """What one values case installs."""
    return render(files=[request.param])


def of_kind(objects: list[Manifest], kind: str) -> list[Manifest]:
    return [o for o in objects if o["kind"] == kind]


def operator_deployment(objects: list[Manifest]) -> Manifest:
    (deployment,) = of_kind(objects, "Deployment")
    return deployment


def operator_container(objects: list[Manifest]) -> Manifest:
    (container,) = operator_deployment(objects)["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def operator_rules(objects: list[Manifest]) -> list[Manifest]:
    """The rules under which the operator serves, from its ClusterRole or from the first namespace's Role."""
    roles = [o for o in objects if o["kind"] in ("ClusterRole", "Role") and o["metadata"]["name"].endswith("-operator")]
    return list(roles[0]["rules"])


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_helm_lint_finds_nothing(run_helm: Helm, case: Path) -> None:
    done = run_helm("lint", "--strict", str(CHART), "-f", str(case))
    assert done.returncode == 0, done.stdout


def test_every_object_fits_the_schema_of_its_kind(objects: list[Manifest]) -> None:
    for manifest in objects:
        if manifest["kind"] != "CustomResourceDefinition":  # its schema is recursive; the API server's tests apply it
            kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_every_object_carries_the_common_labels(objects: list[Manifest]) -> None:
    for manifest in objects:
        carried = manifest["metadata"]["labels"]
        assert carried[labels.NAME_LABEL] == labels.NAME_VALUE, manifest["metadata"]["name"]
        assert carried[labels.INSTANCE_LABEL] == "tidegate"
        assert carried[labels.MANAGED_BY_LABEL] == "Helm"


def test_namespaced_objects_name_their_namespace(objects: list[Manifest]) -> None:
    """So that `helm template | kubectl apply` puts them where the bindings look for them."""
    cluster_wide = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    watched = {"team-a", "team-b"}
    for manifest in objects:
        if manifest["kind"] not in cluster_wide:
            assert manifest["metadata"]["namespace"] in {NAMESPACE, *watched}


def test_probes_and_port_are_those_of_the_contract(objects: list[Manifest]) -> None:
    container = operator_container(objects)
    assert container["ports"] == [{"name": labels.OPS_PORT_NAME, "containerPort": labels.OPS_PORT}]
    probes = {
        "startupProbe": labels.STARTUP_PATH,
        "readinessProbe": labels.READY_PATH,
        "livenessProbe": labels.LIVE_PATH,
    }
    for probe, path in probes.items():
        assert container[probe]["httpGet"] == {"path": path, "port": labels.OPS_PORT_NAME}


def test_operator_has_no_more_rights_on_its_node_than_it_needs(objects: list[Manifest]) -> None:
    pod = operator_deployment(objects)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert operator_container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_operator_pods_are_never_taken_for_pods_of_an_inference_service(objects: list[Manifest]) -> None:
    assert labels.SERVICE_LABEL not in operator_deployment(objects)["spec"]["template"]["metadata"]["labels"]


def test_disruption_budget_selects_the_operator_and_lets_a_node_drain(objects: list[Manifest]) -> None:
    deployment = operator_deployment(objects)
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert budget["spec"]["selector"] == deployment["spec"]["selector"]
        assert budget["spec"]["maxUnavailable"] == 1
        assert deployment["spec"]["replicas"] > 1, "a budget for one replica would block the drain of its node"


def test_bindings_name_roles_and_the_account_of_the_deployment(objects: list[Manifest]) -> None:
    account = operator_deployment(objects)["spec"]["template"]["spec"]["serviceAccountName"]
    roles = {
        (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"])
        for o in objects
        if o["kind"] in ("Role", "ClusterRole")
    }
    for binding in (*of_kind(objects, "RoleBinding"), *of_kind(objects, "ClusterRoleBinding")):
        ref = binding["roleRef"]
        assert (ref["kind"], binding["metadata"].get("namespace"), ref["name"]) in roles
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]


def test_definition_is_the_one_that_the_operator_generates(render: Render) -> None:
    (installed,) = of_kind(render(), "CustomResourceDefinition")
    generated = custom_resource_definition()
    assert installed["metadata"]["name"] == generated["metadata"]["name"]
    assert installed["spec"] == generated["spec"]


def test_names_of_digits_stay_text(render: Render) -> None:
    """YAML would read them as numbers, which the API server refuses."""
    objects = render("--namespace", "123", "--set-string", "nameOverride=456,watchNamespaces={789}")
    for manifest in objects:
        metadata = manifest["metadata"]
        values = (metadata["name"], metadata.get("namespace", ""), *metadata["labels"].values())
        assert all(isinstance(value, str) for value in values), values
    env = {entry["name"]: entry.get("value", "") for entry in operator_container(objects)["env"]}
    assert all(isinstance(value, str) for value in env.values())
    assert env["TIDEGATE_OPERATOR_NAMESPACES"] == "789"


@pytest.mark.parametrize(
    ("version", "is_taken"),
    [("1.29.9", False), ("1.30.0", True), ("1.30.0-gke.1000", True), ("1.33.4-eks-abc", True)],
)
def test_chart_asks_for_kubernetes_1_30(run_helm: Helm, version: str, is_taken: bool) -> None:
    done = run_helm("template", "tidegate", str(CHART), "--kube-version", version)
    assert (done.returncode == 0) == is_taken, done.stderr


def test_definition_goes_with_the_release_unless_it_is_to_be_kept(render: Render) -> None:
    (goes,) = of_kind(render(), "CustomResourceDefinition")
    (stays,) = of_kind(render("--set", "crds.keep=true"), "CustomResourceDefinition")
    assert "annotations" not in goes["metadata"]
    assert stays["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert of_kind(render("--set", "crds.install=false"), "CustomResourceDefinition") == []


def test_limited_to_namespaces_the_operator_gets_no_cluster_wide_rights(render: Render) -> None:
    objects = render(files=[CHART / "ci" / "namespaced.yaml"])
    roles = [r for r in of_kind(objects, "Role") if r["metadata"]["name"] == "tidegate-operator"]
    assert {role["metadata"]["namespace"] for role in roles} == {"team-a", "team-b"}
    assert of_kind(objects, "ClusterRoleBinding") == []
    env = {e["name"]: e.get("value") for e in operator_container(objects)["env"]}
    assert env["TIDEGATE_OPERATOR_NAMESPACES"] == "team-a,team-b"


def test_cluster_wide_and_namespaced_rights_are_the_same_list(render: Render) -> None:
    assert operator_rules(render()) == operator_rules(render("--set", "watchNamespaces={team-a}"))


@pytest.mark.parametrize("kind", CHILD_KINDS, ids=lambda kind: kind.name)
def test_operator_may_do_with_each_kind_of_child_what_it_does(render: Render, kind: Kind) -> None:
    """Server-side apply needs `create` and `patch`, the watches `list` and `watch`."""
    verbs = {
        verb
        for rule in operator_rules(render())
        if kind.group in rule["apiGroups"] and kind.plural in rule["resources"]
        for verb in rule["verbs"]
    }
    assert verbs == {"get", "list", "watch", "create", "patch", "delete"}


def test_operator_reads_its_settings_from_the_environment_that_the_chart_gives(objects: list[Manifest]) -> None:
    """Every variable is one that the operator knows, and with them alone it starts."""
    given = {e["name"]: e.get("value", "from-the-pod") for e in operator_container(objects)["env"]}
    ours = {name: value for name, value in given.items() if name.startswith(ENVIRONMENT_PREFIX)}
    settings = read_settings({}, ours)
    known = {ENVIRONMENT_PREFIX + field.name.upper() for field in fields(OperatorSettings)}
    assert set(ours) <= known
    assert settings.lease_namespace == settings.identity == "from-the-pod"
    assert settings.server_image.startswith(("tidegate/server:", "registry.example.com/tidegate/server:1.2.3"))


def test_operator_may_write_the_lease_that_it_is_told_to_hold(objects: list[Manifest]) -> None:
    env = {e["name"]: e.get("value") for e in operator_container(objects)["env"]}
    for role in of_kind(objects, "Role"):
        if role["metadata"]["name"].endswith("-leader"):
            assert role["rules"][1]["resourceNames"] == [env["TIDEGATE_OPERATOR_LEASE_NAME"]]


def test_operator_cannot_read_secrets_and_grants_nothing(render: Render) -> None:
    for role in (o for o in render() if o["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            assert "secrets" not in rule["resources"]
            assert "rbac.authorization.k8s.io" not in rule["apiGroups"]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        pytest.param("operator.replcas=3", "replcas", id="a misspelt key inside"),
        pytest.param("opperator.replicas=3", "opperator", id="a misspelt key at the top"),
        pytest.param("operator.replicas=-1", "replicas", id="less than no replica"),
        pytest.param("operator.log.level=loud", "level", id="a level that is none"),
        pytest.param("server.image.pullPolicy=Sometimes", "pullPolicy", id="a pull policy that is none"),
        pytest.param("server.image.digest=latest", "digest", id="a digest that is none"),
        pytest.param("watchNamespaces={Team_A}", "watchNamespaces", id="a namespace that cannot be"),
    ],
)
def test_values_schema_refuses(run_helm: Helm, setting: str, told: str) -> None:
    done = run_helm("template", "tidegate", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert told in done.stderr


def test_missing_account_name_is_refused_with_what_to_set(run_helm: Helm) -> None:
    done = run_helm("template", "tidegate", str(CHART), "--set", "operator.serviceAccount.create=false")
    assert done.returncode != 0
    assert "operator.serviceAccount.name must name an existing ServiceAccount" in done.stderr


def test_every_value_has_a_comment() -> None:
    """Right above it, or above one of the groups that hold it."""
    commented: list[tuple[int, bool]] = []  # indentation of the groups we are in, and whether a comment explains each
    above = ""
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            indent = len(line) - len(line.lstrip())
            commented = [(i, explained) for i, explained in commented if i < indent]
            explained = above.startswith("#") or any(e for _, e in commented)
            assert explained or text.endswith(":"), f"no comment explains {text}"
            commented.append((indent, explained))
        above = text


def test_schema_knows_every_value_and_no_other() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    for name in ("crds", "rbac", "operator", "server"):
        assert set(schema["properties"][name]["properties"]) == set(values[name])
