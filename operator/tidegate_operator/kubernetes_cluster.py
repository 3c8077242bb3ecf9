"""The real API server behind the `Cluster` protocol, through the official client's asyncio side."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.dynamic import DynamicClient
from kubernetes.aio.dynamic.resource import Resource

from tidegate_contract.labels import FIELD_MANAGER
from tidegate_operator.cluster import Kind, Manifest, ObjectRef, kind_of
from tidegate_operator.errors import ClusterError, Conflict, Missing, OperatorError, Refused, Unavailable

REQUEST_TIMEOUT_S = 15.0
PAGE_SIZE = 500
# A server-side apply of what does not fit its kind is answered with 500, though only the sender can mend it.
UNFIT_OBJECT = "failed to create typed patch object"


async def load_configuration() -> Configuration:
    """The pod's service account, or else what `KUBECONFIG` and `~/.kube/config` say."""
    configuration = Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST") and not os.environ.get("KUBECONFIG"):
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        else:
            await kubernetes_config.load_kube_config(client_configuration=configuration, persist_config=False)
    except kubernetes_config.ConfigException as error:
        raise OperatorError(f"no cluster: {error}; run inside a pod or point KUBECONFIG at a file") from error
    return configuration


class KubernetesCluster:
    """Uses the dynamic client with a fixed table of kinds: no discovery calls, no cache file."""

    def __init__(self, configuration: Configuration) -> None:
        self._api = ApiClient(configuration=configuration)
        self._dynamic = DynamicClient(self._api)

    async def close(self) -> None:
        await self._api.close()

    async def get(self, ref: ObjectRef) -> Manifest | None:
        try:
            return await self._call("get", ref.kind, name=ref.name, namespace=ref.namespace)
        except Missing:
            return None

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str], fields: Mapping[str, str] | None = None
    ) -> Sequence[Manifest]:
        items: list[Manifest] = []
        token: str | None = None
        while True:
            page = await self._call(
                "get",
                kind,
                namespace=namespace,
                label_selector=_selector(labels),
                field_selector=_selector(fields or {}),
                limit=PAGE_SIZE,
                _continue=token,
            )
            # Items of a list come without their kind; everything downstream reads it from the object.
            items += [{"apiVersion": kind.api_version, "kind": kind.name} | item for item in page["items"]]
            token = page["metadata"].get("continue")
            if not token:
                return items

    async def create(self, manifest: Manifest) -> Manifest:
        return await self._call("create", kind_of(manifest), body=manifest, field_manager=FIELD_MANAGER)

    async def replace(self, manifest: Manifest) -> Manifest:
        return await self._call("replace", kind_of(manifest), body=manifest, field_manager=FIELD_MANAGER)

    async def apply(
        self, manifest: Manifest, *, field_manager: str, force: bool, subresource: str | None = None
    ) -> Manifest:
        return await self._call(
            "server_side_apply",
            kind_of(manifest),
            subresource=subresource,
            body=manifest,
            field_manager=field_manager,
            force_conflicts=force,
        )

    async def merge(self, ref: ObjectRef, patch: Manifest) -> Manifest:
        return await self._call(
            "patch",
            ref.kind,
            name=ref.name,
            namespace=ref.namespace,
            body=patch,
            content_type="application/merge-patch+json",
            field_manager=FIELD_MANAGER,
        )

    async def delete(self, ref: ObjectRef) -> None:
        options: Manifest = {"propagationPolicy": "Background"}
        if ref.uid is not None:
            options["preconditions"] = {"uid": ref.uid}
        try:
            await self._call("delete", ref.kind, name=ref.name, namespace=ref.namespace, body=options)
        except (Missing, Conflict):
            return  # gone, or a new object of the same name: not the one that was meant

    async def _call(self, verb: str, kind: Kind, *, subresource: str | None = None, **arguments: Any) -> Manifest:
        method = getattr(self._dynamic, verb)
        try:
            response = await method(
                _Path(kind, subresource), serialize=False, _request_timeout=REQUEST_TIMEOUT_S, **arguments
            )
            answer: Manifest = await response.json()
        except ApiException as error:
            raise _translated(error) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(f"API server: {type(error).__name__} {error}".strip()) from error
        return answer


class _Path(Resource):  # type: ignore[misc]  # the client is untyped
    """A resource of the dynamic client whose paths end in a subresource."""

    def __init__(self, kind: Kind, subresource: str | None) -> None:
        super().__init__(
            prefix="apis" if kind.group else "api",
            group=kind.group,
            api_version=kind.version,
            kind=kind.name,
            namespaced=True,
            name=kind.plural,
        )
        self._suffix = f"/{subresource}" if subresource else ""

    def path(self, name: str | None = None, namespace: str | None = None) -> str:
        base: str = super().path(name=name, namespace=namespace)
        return base + self._suffix


def _selector(wanted: Mapping[str, str]) -> str | None:
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items())) or None


def _translated(error: ApiException) -> ClusterError:
    """One of our errors, with the API server's own sentence rather than the client's dump of headers."""
    status = error.status or 0
    message = _server_message(error.body) or str(error.reason)
    if status == 404:
        return Missing(message, status=status)
    if status == 409:
        return Conflict(message, status=status)
    if status in (400, 403, 405, 413, 415, 422) or message.startswith(UNFIT_OBJECT):
        return Refused(message, status=status)
    return Unavailable(message, status=status)


def _server_message(body: str | bytes | None) -> str | None:
    if not body:
        return None
    try:
        decoded = json.loads(body)
    except ValueError:
        return None
    message = decoded.get("message") if isinstance(decoded, dict) else None
    return message if isinstance(message, str) else None
