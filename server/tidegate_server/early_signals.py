"""Signals that come before the event loop can take them."""

import signal


def keep_signals() -> list[signal.Signals]:
    """From now on SIGTERM and SIGINT are put into this list, until the event loop's handlers take their place.

    By default SIGTERM would end the process with 143 while it imports; and as a container's first process it would not
    even hear of it, because the kernel passes such a process only signals that it handles.
    """
    kept: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: kept.append(signal.Signals(number)))
    return kept
