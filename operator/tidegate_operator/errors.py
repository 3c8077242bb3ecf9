"""The operator's error tree.

OperatorError
├── InvalidSetting        a flag or environment variable has a wrong value; stops the start
├── InvalidResource       the spec cannot be read: permanent, a condition says which field
├── LeaseLost             this process leads no longer and must end
└── ClusterError          the API server said no
    ├── Refused           400, 403, 422, unfit for its kind: permanent until spec, permissions or a policy change
    ├── Conflict          409: another writer was faster; look again at once
    ├── Missing           404 where the object had to exist: it was deleted meanwhile
    └── Unavailable       time-outs, 429, 5xx: temporary
"""


class OperatorError(Exception):
    """Anything the operator reports with words meant for a person."""


class InvalidSetting(OperatorError):
    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name


class InvalidResource(OperatorError):
    """`path` is the field as the user knows it, such as `spec.engine.dtype`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class LeaseLost(OperatorError):
    """Another replica holds the lease, or this one could not renew in time."""


class ClusterError(OperatorError):
    """An answer of the API server that is not success; `status` is its HTTP status, 0 when none came."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Refused(ClusterError):
    pass


class Conflict(ClusterError):
    pass


class Missing(ClusterError):
    pass


class Unavailable(ClusterError):
    pass
