"""Fragments of a pod that users write as they would in a pod, and what the schema checks of them.

Most is left to the API server, which sees them again inside the Deployment. Lists whose entries Kubernetes tells apart
by one field are lists of that kind here too, so that an entry given twice is refused where the user sees it.
"""

from typing import Annotated, Any, Final

from msgspec import Meta

from tidegate_operator.cluster import Manifest

PassThrough = dict[str, Any]
"""A fragment of a Kubernetes object that goes into the pod as it is."""

_ENV_VALUE: Final = {"type": "string", "maxLength": 65_536, "description": "As in a container: numbers are quoted."}


def _keyed(key: str, **others: Manifest) -> Meta:
    """An entry of a list that is told apart by this field."""
    field = {"type": "string", "maxLength": 1024, "description": "As in a pod; no two entries have the same."}
    return Meta(extra_json_schema={"required": [key], "properties": {key: field, **others}})


def keyed_list(key: str, *, description: str, max_length: int) -> Meta:
    """A list that holds each key once."""
    schema = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return Meta(max_length=max_length, description=description, extra_json_schema=schema)


EnvVar = Annotated[PassThrough, _keyed("name", value=_ENV_VALUE)]
Volume = Annotated[PassThrough, _keyed("name")]
VolumeMount = Annotated[PassThrough, _keyed("mountPath")]
