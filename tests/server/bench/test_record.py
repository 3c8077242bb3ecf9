import pytest

from tests.server.bench.records import record


def test_times_count_from_the_planned_arrival_not_from_the_sending() -> None:
    late = record(arrival_s=0.5, sent_s=0.9)
    assert (late.ttft_s, late.e2e_s) == (0.5, 2.5)


def test_tpot_is_a_mean_over_tokens_while_itl_is_over_pieces() -> None:
    one = record(tokens_at_s=(1.0, 2.0, 4.0), num_output_tokens=4)  # one piece held two tokens
    assert one.tpot_s == pytest.approx(1.0)
    assert one.itl_s == (1.0, 2.0)


def test_a_single_token_has_neither_tpot_nor_itl() -> None:
    one = record(tokens_at_s=(1.0,), num_output_tokens=1)
    assert (one.tpot_s, one.itl_s) == (None, ())


def test_a_request_without_a_token_has_no_ttft() -> None:
    assert record(tokens_at_s=(), num_output_tokens=0).ttft_s is None
