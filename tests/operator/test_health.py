"""The ops port: what happens where it cannot be had."""

import asyncio
import socket
from datetime import timedelta

import pytest

from tidegate_operator.cluster import Key
from tidegate_operator.errors import InvalidSetting
from tidegate_operator.health import Health, serve_health
from tidegate_operator.metrics import OperatorMetrics
from tidegate_operator.watched import Watched
from tidegate_operator.worker import Worker


async def look(_: Key) -> timedelta | None:
    return None


def test_port_that_is_taken_is_told_with_the_flag_that_chooses_it() -> None:
    metrics = OperatorMetrics()
    health = Health(Worker(look, metrics), Watched(), lambda: 0.0)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with pytest.raises(InvalidSetting, match=r"^--ops-port: .*address already in use"):
            asyncio.run(serve_health(health, metrics, taken.getsockname()[1]))
