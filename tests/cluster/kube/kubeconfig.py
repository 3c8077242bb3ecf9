"""Files that tell a program where the API server is and who it is; JSON, which is YAML too."""

import base64
import json
from pathlib import Path


def render_kubeconfig(*, context: str, server: str, ca_pem: bytes, token: str) -> str:
    """A kubeconfig that stands alone: certificate and token are inside."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(ca_pem).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }
    return json.dumps(document, indent=2) + "\n"


def write_private(path: Path, text: str) -> None:
    """Write a file that holds a secret, readable by its owner alone from the first byte."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
