"""The cluster's certificate authority, its server and client certificates, and the tokens of its parts."""

import secrets
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.kube.paths import ClusterPaths
from tests.cluster.kube.shell import run
from tests.cluster.kube.spec import MAX_NODES, ClusterSpec

_DAYS = "365"
_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

# User name and group of every part that calls the API server.
_USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    # CoreDNS only reads; a role of its own would cost an apply before every start.
    "coredns": ("coredns", "system:masters"),
} | {f"kubelet{index}": (f"system:node:node{index}", "system:nodes") for index in range(1, MAX_NODES + 1)}


def token_rows(tokens: dict[str, str]) -> str:
    """Lay out the API server's token file: token, user, uid, and the group of those that have one."""
    rows = ((tokens[part], user, part, group) for part, (user, group) in _USERS.items())
    return "".join(",".join(column for column in row if column) + "\n" for row in rows)


def server_names(spec: ClusterSpec) -> str:
    """The subject alternative names under which clients reach the API server."""
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    addresses = dict.fromkeys(("127.0.0.1", spec.kubernetes_service_address, spec.control_plane_address))
    return ",".join([f"DNS:{name}" for name in [*names, "localhost"]] + [f"IP:{address}" for address in addresses])


def ensure_credentials(spec: ClusterSpec, paths: ClusterPaths) -> None:
    """Make keys, certificates and tokens once per cluster."""
    done = paths.pki / "complete"
    if done.exists():
        return
    paths.pki.mkdir(parents=True, exist_ok=True)
    paths.pki.chmod(0o700)
    pki = paths.pki
    authority = ["-keyout", str(pki / "ca.key"), "-out", str(pki / "ca.crt"), "-subj", f"/CN={spec.name}-ca"]
    run(["openssl", "req", "-x509", *_NEW_KEY, *authority, "-days", _DAYS])
    _certificate(pki, "apiserver", "/CN=kube-apiserver", [f"subjectAltName={server_names(spec)}"])
    # Logs and exec: the API server identifies itself to the kubelet with this one.
    _certificate(
        pki, "kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client", ["extendedKeyUsage=clientAuth"]
    )
    run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(pki / "sa.key")])
    run(["openssl", "pkey", "-in", str(pki / "sa.key"), "-pubout", "-out", str(pki / "sa.pub")])
    tokens = {part: secrets.token_hex(16) for part in _USERS}
    for part, token in tokens.items():
        (pki / f"{part}.token").write_text(token, encoding="utf-8")
    (pki / "tokens.csv").write_text(token_rows(tokens), encoding="utf-8")
    done.touch()


def read_token(paths: ClusterPaths, part: str) -> str:
    return (paths.pki / f"{part}.token").read_text(encoding="utf-8")


def _certificate(pki: Path, name: str, subject: str, extensions: Sequence[str]) -> None:
    key, request, extension_file = pki / f"{name}.key", pki / f"{name}.csr", pki / f"{name}.ext"
    extension_file.write_text("\n".join(extensions) + "\n", encoding="utf-8")
    run(["openssl", "req", *_NEW_KEY, "-keyout", str(key), "-out", str(request), "-subj", subject])
    signing = ["-CA", str(pki / "ca.crt"), "-CAkey", str(pki / "ca.key"), "-CAcreateserial", "-days", _DAYS]
    files = ["-in", str(request), "-out", str(pki / f"{name}.crt"), "-extfile", str(extension_file)]
    run(["openssl", "x509", "-req", *files, *signing])
