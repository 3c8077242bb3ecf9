"""What the watch has shown of each resource: to tell news from our own writes, and a silent watch from a quiet one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidegate_contract import labels
from tidegate_operator.cluster import Key, Manifest

SILENCE_LIMIT_S: Final = 60.0  # a watch that has not shown a change by then is dead


@dataclass(frozen=True, slots=True)
class Version:
    """What about a resource can change what should be; status is ours and not in here."""

    uid: str
    generation: int
    roll: str | None


def version_of(manifest: Manifest) -> Version:
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    return Version(metadata["uid"], metadata.get("generation", 0), annotations.get(labels.ROLL_ANNOTATION))


@dataclass(slots=True)
class Watched:
    """Filled by watch events, compared with what a list shows. Times are monotonic seconds."""

    _shown: dict[Key, Version] = field(default_factory=dict)
    _behind_since: dict[Key, float] = field(default_factory=dict)

    def show(self, key: Key, manifest: Manifest) -> bool:
        """Note a watch event; True when it is news rather than an echo of our status write."""
        version = version_of(manifest)
        is_news = self._shown.get(key) != version
        self._shown[key] = version
        self._behind_since.pop(key, None)
        return is_news

    def forget(self, key: Key) -> None:
        self._shown.pop(key, None)
        self._behind_since.pop(key, None)

    def compare(self, listed: Iterable[tuple[Key, Manifest]], now: float) -> list[Key]:
        """Note what the API server lists; returns the resources whose present version the watch has not shown."""
        behind = [key for key, manifest in listed if self._shown.get(key) != version_of(manifest)]
        self._behind_since = {key: self._behind_since.get(key, now) for key in behind}
        return behind

    def silent_for(self, now: float) -> float:
        """Seconds for which the watch has owed us a change; 0 when it owes none."""
        return max((now - since for since in self._behind_since.values()), default=0.0)
