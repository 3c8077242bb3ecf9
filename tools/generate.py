"""`make generate`: writes the files that are made from code, so that a reader and `kubectl apply -f` find them."""

import subprocess
from pathlib import Path

from tests.cluster.kube.binaries import HELM, ensure_binaries
from tidegate_operator.crd import crd_yaml

REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "charts" / "tidegate"
CRD = CHART / "files" / "inferenceservices-crd.yaml"
INSTALL = REPOSITORY / "manifests" / "install.yaml"
NAMESPACE = "tidegate-system"
KUBERNETES = "1.30.0"  # the oldest that the chart takes; helm itself may assume an older one

INSTALL_HEADER = f"""\
# Generated from charts/tidegate with its default values by `make generate`, for those without Helm:
#   kubectl apply --server-side -f manifests/install.yaml
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
"""


def install_yaml(helm: Path) -> str:
    """The chart with its default values, the namespace first."""
    template = [str(helm), "template", "tidegate", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES]
    rendered = subprocess.run(template, stdout=subprocess.PIPE, text=True, check=True).stdout
    return INSTALL_HEADER + rendered


def main() -> None:
    CRD.write_text(crd_yaml())
    INSTALL.write_text(install_yaml(ensure_binaries((HELM,)).path("helm")))


if __name__ == "__main__":
    main()
