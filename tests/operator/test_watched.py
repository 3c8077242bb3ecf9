"""News, echoes, and a watch that has gone silent."""

from tests.operator.make import resource_manifest
from tidegate_contract import labels
from tidegate_operator.cluster import Key, Manifest
from tidegate_operator.watched import Watched

KEY = Key("demo", "chat")


def version(generation: int = 1, roll: str | None = None) -> Manifest:
    manifest = resource_manifest()
    manifest["metadata"]["generation"] = generation
    if roll is not None:
        manifest["metadata"]["annotations"] = {labels.ROLL_ANNOTATION: roll}
    return manifest


def test_status_write_of_our_own_is_no_news() -> None:
    watched = Watched()
    assert watched.show(KEY, version())
    assert not watched.show(KEY, version() | {"status": {"replicas": 3}})


def test_new_spec_and_a_wish_to_roll_are_news() -> None:
    watched = Watched()
    watched.show(KEY, version(1))
    assert watched.show(KEY, version(2))
    assert watched.show(KEY, version(2, roll="now"))


def test_resource_made_again_is_news() -> None:
    watched = Watched()
    watched.show(KEY, version())
    watched.forget(KEY)
    assert watched.show(KEY, version())


def test_watch_that_does_not_show_what_a_list_shows_is_silent_from_then_on() -> None:
    watched = Watched()
    watched.show(KEY, version(1))
    assert watched.compare([(KEY, version(2))], 100.0) == [KEY]
    assert watched.compare([(KEY, version(3))], 130.0) == [KEY]
    assert watched.silent_for(170.0) == 70.0


def test_watch_that_catches_up_is_not_silent() -> None:
    watched = Watched()
    watched.compare([(KEY, version(2))], 100.0)
    watched.show(KEY, version(2))
    assert watched.silent_for(170.0) == 0.0


def test_quiet_cluster_is_not_a_silent_watch() -> None:
    watched = Watched()
    watched.show(KEY, version())
    assert watched.compare([(KEY, version())], 1e6) == []
    assert watched.silent_for(2e6) == 0.0


def test_resource_deleted_meanwhile_is_owed_no_more() -> None:
    watched = Watched()
    watched.compare([(KEY, version())], 100.0)
    watched.compare([], 130.0)
    assert watched.silent_for(1e6) == 0.0
