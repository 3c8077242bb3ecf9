"""What `make serve` says before and after it starts a server."""

import json
import re

import pytest

from tidegate_server.listeners import bind
from tools.serve_locally import HOST, free_port, hint, main


def test_where_another_server_has_the_port_it_is_one_line_and_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with bind(HOST, 0, "--port") as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("TIDEGATE_PORT", "0")
        monkeypatch.setenv("TIDEGATE_OPS_PORT", str(port))
        assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(
        rf"make serve: --ops-port: {HOST}:{port} cannot be used: .* TIDEGATE_PORT=8001 .* make serve\n",
        said.err,
    )


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TIDEGATE_PORT", "http")
    assert main([]) == 2
    assert capsys.readouterr().err == "make serve: TIDEGATE_PORT: 'http' is not a whole number\n"


def test_port_0_is_any_free_one() -> None:
    assert free_port(0, "--port") > 0


def test_the_hint_asks_the_model_on_the_port_that_was_chosen() -> None:
    shown = hint(8001, "my-model", 3.21)
    assert "Ready after 3.2 s" in shown
    assert f"curl -N http://{HOST}:8001/v1/chat/completions" in shown
    body = re.search(r"-d '(.*)'", shown)
    assert body is not None
    assert json.loads(body[1])["model"] == "my-model"
