"""The version of this distribution, as installed."""

from importlib.metadata import PackageNotFoundError, version


def server_version() -> str:
    try:
        return version("tidegate")
    except PackageNotFoundError:  # run from a source tree that nobody installed
        return "unknown"
