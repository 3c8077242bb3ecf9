"""kopf decorators only: every watch event becomes a key in the queue, whatever the event was.

With `on.event` handlers alone kopf adds neither finalizers nor annotations to anything.
"""

from collections.abc import Callable
from typing import Any

import kopf

from tidegate_contract.labels import GROUP, PLURAL, SERVICE_LABEL, VERSION
from tidegate_operator.cluster import CHILD_KINDS, POD, Key
from tidegate_operator.watched import Watched

Trigger = Callable[[Key], None]


def build_registry(trigger: Trigger, watched: Watched) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def resource_event(type: str | None, namespace: str | None, name: str, body: kopf.Body, **_: Any) -> None:
        key = Key(namespace or "", name)
        if type == "DELETED":
            watched.forget(key)
            trigger(key)
        elif watched.show(key, dict(body)):
            trigger(key)

    async def child_event(namespace: str | None, labels: kopf.Labels, **_: Any) -> None:
        owner = labels.get(SERVICE_LABEL)
        if owner:
            trigger(Key(namespace or "", owner))

    for kind in (*CHILD_KINDS, POD):
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"{kind.plural}_event")(child_event)
    return registry


def build_kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # Events are ours: one per decision, not one per log line
    settings.peering.standalone = True  # the lease decides who leads
    settings.scanning.disabled = True  # needs no right to watch namespaces and CRDs
    settings.process.ultimate_exiting_timeout = 20
    for kind in (*CHILD_KINDS, POD):
        # Without the selector every pod of the cluster would pass through here.
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = SERVICE_LABEL
    return settings
