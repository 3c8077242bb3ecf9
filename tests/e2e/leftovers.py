"""What speaks of Tidegate in a cluster, whoever made it."""

import json

from tests.e2e.kube import Json, Kube

# Kinds that the cluster makes of its own accord and forgets by itself.
PASSING_KINDS = {"events", "events.events.k8s.io", "componentstatuses", "nodes", "leases.coordination.k8s.io"}


def objects_that_name_us(kube: Kube) -> frozenset[str]:
    """Every object of every kind in the cluster whose name, namespace or labels speak of Tidegate."""
    kinds = kube.run("api-resources", "--verbs=list", "-o", "name").split()
    found: Json = json.loads(
        kube.run("get", ",".join(sorted(set(kinds) - PASSING_KINDS)), "-A", "-o", "json", "--ignore-not-found")
    )
    return frozenset(
        f"{item['kind']} {item['metadata'].get('namespace', '')}/{item['metadata']['name']}"
        for item in found["items"]
        if "tidegate" in json.dumps([item["metadata"].get(key) for key in ("name", "namespace", "labels")])
    )
