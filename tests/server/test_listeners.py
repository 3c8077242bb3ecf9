"""The two ports: who gets one, and which setting is named when nobody can."""

import pytest

from tidegate_server.errors import InvalidSetting
from tidegate_server.listeners import bind


def test_of_two_servers_that_start_together_the_second_is_told() -> None:
    with bind("127.0.0.1", 0, "--port") as first:
        port = first.getsockname()[1]
        with pytest.raises(
            InvalidSetting,
            match=rf"^--ops-port: 127.0.0.1:{port} cannot be used: .* with --ops-port or TIDEGATE_OPS_PORT$",
        ):
            bind("127.0.0.1", port, "--ops-port")


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("a..b", id="what can be no name"),
        pytest.param("203.0.113.7", id="another machine's"),
    ],
)
def test_an_address_that_is_not_this_machine_s_is_a_matter_of_the_host(host: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"^--host: '{host}' is not an address of this machine: "):
        bind(host, 0, "--port")
