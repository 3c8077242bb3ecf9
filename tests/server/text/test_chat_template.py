"""Messages to a prompt."""

import json
from pathlib import Path

import pytest

from tidegate_server.errors import InvalidRequest, ModelNotFound, ModelNotSupported
from tidegate_server.text.chat_template import ChatMessage, ChatTemplate, load_folder_template

HELLO = [ChatMessage("user", "hello")]


def test_messages_and_the_generation_prompt_are_rendered() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}\n    {{ m.role }}={{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}assistant={% endif %}",
        {"bos_token": "<s>"},
    )
    assert template.render(HELLO) == "<s>    user=hello;assistant="
    assert template.render(HELLO, add_generation_prompt=False) == "<s>    user=hello;"


def test_block_lines_leave_no_blank_lines() -> None:
    template = ChatTemplate(
        "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", {}
    )
    assert template.render(HELLO) == "hello\n"


def test_a_refusing_template_becomes_a_refused_request() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match="roles must alternate") as refused:
        template.render(HELLO)
    assert refused.value.param == "messages"


def test_helpers_that_templates_use_are_there() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}"
        "{{ strftime_now('%Y') | length }}{{ tools is none }}{{ mood }}",
        {},
    )
    assert template.render(HELLO, variables={"mood": "glad"}) == '{"role": "user", "content": "hello"}4Trueglad'


def test_a_template_cannot_leave_its_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__base__.__subclasses__() }}", {})
    with pytest.raises(InvalidRequest):
        template.render(HELLO)


def test_a_template_that_is_no_jinja_stops_the_start() -> None:
    with pytest.raises(ModelNotSupported, match="cannot be compiled"):
        ChatTemplate("{% if %}", {})


def test_a_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert load_folder_template(tmp_path) is None


def test_the_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    config = {"chat_template": "from config", "bos_token": {"content": "<b>"}, "eos_token": "</b>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = load_folder_template(tmp_path)
    assert template is not None
    assert template.render(HELLO) == "from config"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    template = load_folder_template(tmp_path)
    assert template is not None
    assert template.render(HELLO) == "<b></b>"


def test_of_several_named_templates_the_default_is_used(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_folder_template(tmp_path)
    assert template is not None
    assert template.render(HELLO) == "yes"


def test_a_list_of_named_templates_without_a_default_has_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [{"name": []}, {"template": "no"}]}))
    assert load_folder_template(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("tokenizer_config.json", b"[]", id="a list for a table"),
        pytest.param("tokenizer_config.json", b"{", id="half a table"),
        pytest.param("chat_template.jinja", b"\xff\xfe", id="a template that is no UTF-8"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelNotFound, match=rf"{name} is .*damaged: .*; copy it again"):
        load_folder_template(tmp_path)
