"""The ops port: what it answers, and that it answers while everything else is stuck."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx
import msgspec
import pytest

from tidegate_contract import labels
from tidegate_contract.admin import DrainReply, DrainRequest, LoadReport, RecordingReply, ServerState
from tidegate_server.api.ops_report import (
    MAX_LOOP_AGE_S,
    PodView,
    live_answer,
    load_report,
    ready_answer,
    startup_answer,
)
from tidegate_server.api.probes import OpsServer, OpsSources
from tidegate_server.engine.progress_watch import MAX_IDLE_AGE_S
from tidegate_server.engine.snapshot import EngineSnapshot
from tidegate_server.listeners import bind
from tidegate_server.metrics import BuildFacts, ServerMetrics

NOW_S = 1000.0
READY = PodView(
    state=ServerState.READY,
    because="ready",
    snapshot=EngineSnapshot(state=ServerState.READY, step=5, progress_at_s=NOW_S - 0.5),
    loop_beat_s=NOW_S - 0.5,
    now_s=NOW_S,
)
STARTING = replace(READY, state=ServerState.STARTING, because="starting", snapshot=EngineSnapshot())
DRAINING = replace(READY, state=ServerState.DRAINING, because="draining")
FAILED = replace(READY, state=ServerState.FAILED, because="out of memory")
STUCK_ENGINE = replace(READY, snapshot=replace(READY.snapshot, progress_at_s=NOW_S - MAX_IDLE_AGE_S - 1))
STEPPING = replace(READY.snapshot, step_bound_s=300.0, step_num_requests=2, step_num_tokens=512)
SLOW_STEP = replace(READY, snapshot=replace(STEPPING, progress_at_s=NOW_S - 299))
HUNG_STEP = replace(READY, snapshot=replace(STEPPING, progress_at_s=NOW_S - 301))
STUCK_LOOP = replace(READY, loop_beat_s=NOW_S - MAX_LOOP_AGE_S - 1)


@pytest.mark.parametrize(
    ("view", "startup", "ready", "live"),
    [
        pytest.param(STARTING, False, False, True, id="a starting pod is alive and no more"),
        pytest.param(READY, True, True, True, id="a ready pod is everything"),
        pytest.param(DRAINING, True, False, True, id="a draining pod takes nothing new and lives"),
        pytest.param(FAILED, False, False, False, id="a failed pod is nothing"),
        pytest.param(STUCK_ENGINE, True, False, False, id="an engine without progress is not alive"),
        pytest.param(SLOW_STEP, True, True, True, id="a step within its bound is alive, however slow"),
        pytest.param(HUNG_STEP, True, False, False, id="a step beyond its bound is not alive"),
        pytest.param(STUCK_LOOP, True, False, False, id="a stuck event loop is not alive"),
        pytest.param(
            replace(STARTING, now_s=NOW_S + 500, loop_beat_s=NOW_S + 500),
            False,
            False,
            True,
            id="loading may take long",
        ),
    ],
)
def test_probes(view: PodView, startup: bool, ready: bool, live: bool) -> None:
    answers = (startup_answer(view), ready_answer(view), live_answer(view))
    assert tuple(answer.ok for answer in answers) == (startup, ready, live)
    assert all(answer.reason for answer in answers)


def test_a_failed_probe_tells_why() -> None:
    assert live_answer(FAILED).reason == "out of memory"
    assert "no progress for 61 s, since step 5" in live_answer(STUCK_ENGINE).reason
    hung = "step 5 (requests: 2, tokens: 512) has run for 301 s, and its bound is 300 s"
    assert live_answer(HUNG_STEP).reason == hung
    assert "event loop" in live_answer(STUCK_LOOP).reason


def test_the_load_report_counts_in_tokens() -> None:
    snapshot = EngineSnapshot(
        kv_blocks_live=3, kv_blocks_total=10, kv_blocks_free=6, kv_blocks_cached=1, block_size=16, max_num_seqs=8,
        num_waiting=2, waiting_prompt_tokens=40, progress_at_s=NOW_S - 2,
    )  # fmt: skip
    report = load_report(replace(READY, snapshot=snapshot), "m", BuildFacts(version="1", device="cpu"))
    assert (report.kv_tokens_in_use, report.kv_tokens_capacity, report.waiting_prompt_tokens) == (48, 160, 40)
    assert (report.model, report.state, report.device, report.since_progress_s) == ("m", ServerState.READY, "cpu", 2.0)


def test_the_load_report_predicts_the_next_queue_time_and_says_how_far_to_trust_that() -> None:
    snapshot = EngineSnapshot(queue_delay_predicted_s=2.71828, prediction_error_ratio=0.31416)
    report = load_report(replace(READY, snapshot=snapshot), "m", BuildFacts(version="1"))
    assert (report.queue_delay_predicted_s, report.prediction_error_ratio) == (2.718, 0.314)


def test_the_load_report_says_what_runs_and_whether_it_is_exact() -> None:
    facts = BuildFacts(version="1", kernels="cpu-avx2", exact=False, inexact_ops=("down 8x4",))
    report = load_report(READY, "m", facts)
    assert (report.kernels, report.exact, report.inexact_ops) == ("cpu-avx2", False, ("down 8x4",))
    assert b'"exact":null,"inexact_ops":[]' in msgspec.json.encode(load_report(READY, "m", BuildFacts(version="1")))


class OpsPort:
    """A running ops server whose pod is a value that tests set."""

    def __init__(self) -> None:
        self.view = READY
        self.drains: list[DrainRequest] = []
        self.recording: RecordingReply | None = None
        self.num_audits = 0
        self.has_engine = True
        facts = BuildFacts(version="1")
        listener = bind("127.0.0.1", 0, "--ops-port")
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.server = OpsServer(
            listener,
            OpsSources(
                view=lambda: self.view,
                facts=lambda: facts,
                metrics=ServerMetrics("m", lambda: self.view.snapshot, lambda: self.view.state, lambda: facts),
                model_name="m",
                drain=self.drain,
                write_recording=lambda: self.recording,
                audit=self.audit,
            ),
        )

    def audit(self) -> bool:
        self.num_audits += 1
        return self.has_engine

    def drain(self, wish: DrainRequest) -> DrainReply:
        self.drains.append(wish)
        return DrainReply(state=ServerState.DRAINING, num_unfinished=3)


@pytest.fixture(scope="module")
def _port() -> Iterator[tuple[OpsPort, httpx.Client]]:
    port = OpsPort()
    port.server.start()
    with httpx.Client(base_url=port.url, timeout=30) as http:
        yield port, http
    port.server.stop()


@pytest.fixture
def port(_port: tuple[OpsPort, httpx.Client]) -> OpsPort:
    _port[0].view = READY
    return _port[0]


@pytest.fixture
def http(_port: tuple[OpsPort, httpx.Client]) -> httpx.Client:
    return _port[1]


def test_probes_over_http_carry_their_reason(port: OpsPort, http: httpx.Client) -> None:
    for path in (labels.STARTUP_PATH, labels.READY_PATH, labels.LIVE_PATH):
        assert http.get(path).status_code == 200
    port.view = DRAINING
    reply = http.get(labels.READY_PATH)
    assert (reply.status_code, reply.text) == (503, "draining\n")
    assert http.head(labels.LIVE_PATH).status_code == 200


def test_load_is_the_contract_s_document(port: OpsPort, http: httpx.Client) -> None:
    report = msgspec.json.decode(http.get(labels.LOAD_PATH).content, type=LoadReport)
    assert (report.model, report.step) == ("m", 5)


def test_metrics_are_in_prometheus_text(port: OpsPort, http: httpx.Client) -> None:
    reply = http.get(labels.METRICS_PATH)
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "tidegate_requests_running" in reply.text


def test_a_drain_call_is_passed_on_and_may_be_repeated(port: OpsPort, http: httpx.Client) -> None:
    port.drains.clear()
    assert http.post(labels.DRAIN_PATH).json() == {"state": "draining", "num_unfinished": 3}
    assert http.post(labels.DRAIN_PATH, json={"timeout_s": 5}).status_code == 200
    assert [wish.timeout_s for wish in port.drains] == [None, 5.0]


@pytest.mark.parametrize("body", ["{", '{"timeout_s": "x"}', '{"timeout_s": -1}', '{"timeout": 5}', "[]"])
def test_a_wrong_drain_call_changes_nothing(port: OpsPort, http: httpx.Client, body: str) -> None:
    port.drains.clear()
    reply = http.post(labels.DRAIN_PATH, content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_drain_request")
    assert port.drains == []


def test_a_drain_call_in_chunks_is_told_to_bring_its_length(port: OpsPort) -> None:
    port.drains.clear()
    with httpx.Client(base_url=port.url, timeout=30) as http:
        reply = http.post(labels.DRAIN_PATH, content=iter([b'{"timeout_s": 1}']))
        assert (reply.status_code, reply.json()["error"]["code"]) == (411, "length_required")
        assert reply.headers["connection"] == "close"
        assert http.get(labels.LIVE_PATH).status_code == 200
    assert port.drains == []


def test_a_recording_call_says_where_the_file_will_be_or_how_to_get_one(port: OpsPort, http: httpx.Client) -> None:
    port.recording = None
    refused = http.post(labels.RECORDING_PATH)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_recording")
    assert "--record-dir" in refused.json()["error"]["message"]
    port.recording = RecordingReply(path="/records/r.jsonl")
    reply = http.post(labels.RECORDING_PATH)
    assert (reply.status_code, reply.json()) == (202, {"path": "/records/r.jsonl"})
    assert http.get(labels.RECORDING_PATH).status_code == 405


def test_an_audit_call_is_passed_on(port: OpsPort, http: httpx.Client) -> None:
    port.num_audits, port.has_engine = 0, True
    reply = http.post(labels.AUDIT_PATH)
    assert (reply.status_code, port.num_audits) == (202, 1)
    assert "tidegate_audit_repairs_total" in reply.text
    assert http.get(labels.AUDIT_PATH).headers["allow"] == "POST"


def test_an_audit_call_before_there_is_an_engine_says_so(port: OpsPort, http: httpx.Client) -> None:
    port.has_engine = False
    assert http.post(labels.AUDIT_PATH).status_code == 503


def test_other_paths_and_methods_are_refused(port: OpsPort, http: httpx.Client) -> None:
    assert http.get("/v1/models").status_code == 404
    draining = http.get(labels.DRAIN_PATH)
    assert (draining.status_code, draining.headers["allow"]) == (405, "POST")
    assert http.post(labels.LOAD_PATH).status_code == 405
    assert http.delete(labels.DRAIN_PATH).status_code == 405


def test_a_slow_caller_holds_up_nobody(port: OpsPort, http: httpx.Client) -> None:
    slow = [httpx.Client(base_url=port.url) for _ in range(3)]
    try:
        for client in slow:
            assert client.get(labels.LIVE_PATH).status_code == 200  # and stays connected
        assert http.get(labels.LIVE_PATH).status_code == 200
        assert threading.active_count() >= 4
    finally:
        for client in slow:
            client.close()
