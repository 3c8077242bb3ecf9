"""Signals before the event loop runs."""

import signal

from tidegate_server.early_signals import keep_signals


def test_signals_are_kept_in_their_order_and_end_nothing() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        kept = keep_signals()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert kept == [signal.SIGINT, signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
