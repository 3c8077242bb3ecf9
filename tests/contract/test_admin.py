"""Pods and operators of neighbouring versions understand each other's load and drain messages."""

import msgspec
import pytest

from tidegate_contract.admin import DrainReply, DrainRequest, LoadReport, ServerState

OLDEST = (
    b'{"model":"m","state":"ready","step":3,"since_progress_s":0.1,"num_running":1,"num_waiting":0,'
    b'"waiting_prompt_tokens":0,"kv_tokens_in_use":16,"kv_tokens_capacity":160,"kv_blocks_free":9,'
    b'"kv_blocks_live":1,"kv_blocks_cached":0,"kv_blocks_total":10}'
)


def test_a_report_without_the_newer_fields_is_read() -> None:
    report = msgspec.json.decode(OLDEST, type=LoadReport)
    assert (report.state, report.block_size, report.queue_time_p90_s) == (ServerState.READY, 16, 0.0)
    assert (report.queue_delay_predicted_s, report.prediction_error_ratio) == (0.0, 0.0)
    assert (report.kernels, report.exact, report.inexact_ops) == ("", None, ())  # nobody knows


def test_a_report_with_fields_of_the_future_is_read() -> None:
    newer = OLDEST[:-1] + b',"predicted_ttft_s":1.5}'
    assert msgspec.json.decode(newer, type=LoadReport).num_running == 1


def test_a_report_comes_back_as_it_was_sent() -> None:
    report = msgspec.json.decode(OLDEST, type=LoadReport)
    assert msgspec.json.decode(msgspec.json.encode(report), type=LoadReport) == report


def test_a_misspelt_drain_request_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="timeout"):
        msgspec.json.decode(b'{"timeout":5}', type=DrainRequest)
    assert msgspec.json.decode(b"{}", type=DrainRequest).timeout_s is None


def test_a_drain_reply_names_the_state_in_words() -> None:
    reply = DrainReply(state=ServerState.DRAINING, num_unfinished=2)
    assert msgspec.json.encode(reply) == b'{"state":"draining","num_unfinished":2}'
