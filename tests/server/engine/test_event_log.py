import structlog
from structlog.testing import capture_logs

from tidegate_server.engine.batch import RequestId
from tidegate_server.engine.event_log import EngineEvent, EventKind, EventLog


def event(step: int, kind: EventKind = EventKind.ARRIVED, request_id: str = "a") -> EngineEvent:
    return EngineEvent(kind, step, float(step), RequestId(request_id), "because")


def test_it_keeps_the_latest_events_in_order_and_no_more() -> None:
    events = EventLog(max_events=3)
    for step in range(5):
        events.record(event(step))
    assert [each.step for each in events] == [2, 3, 4]
    assert len(events) == 3


def test_events_are_found_by_kind_and_request() -> None:
    events = EventLog()
    for each in (event(1), event(2, request_id="b"), event(3, EventKind.FINISHED)):
        events.record(each)
    assert [each.step for each in events.of(EventKind.ARRIVED)] == [1, 2]
    assert [each.step for each in events.of(EventKind.ARRIVED, "b")] == [2]


def test_events_go_to_the_log_at_debug_and_steps_do_not() -> None:
    structlog.reset_defaults()
    with capture_logs() as logs:
        events = EventLog()
        events.record(event(7, EventKind.PREEMPTED))
        events.record(event(8, EventKind.STEP))
    (line,) = logs
    assert (line["event"], line["log_level"], line["reason"], line["step"]) == (
        "request_preempted",
        "debug",
        "because",
        7,
    )
