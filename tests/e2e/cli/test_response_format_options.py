"""``--response-format`` of ``strata agents create`` and ``update``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Run
from e2e.cli.scripted import ScriptedGateway

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}


async def test_the_response_format_is_set_shown_and_removed(
    gateway: ScriptedGateway, strata: Run, tmp_path: Path
) -> None:
    file = tmp_path / "my weather.json"
    file.write_text(json.dumps(SCHEMA))
    created = await strata("agents", "create", "al", "--response-format", str(file))
    assert created.code == 0, created
    asked = gateway.agents.created[0].response_format.json_schema
    assert (asked.name, asked.schema_json) == ("my_weather", json.dumps(SCHEMA))
    agent = gateway.agents.add("bo")
    for value, shown in [("json_object", "json_object"), (str(file), "json_schema my_weather")]:
        done = await strata("agents", "update", "bo", "--response-format", value)
        assert f"replies: {shown}" in done.out
    done = await strata("agents", "update", "bo", "--response-format", "text")
    assert agent.response_format.HasField("text")
    assert "replies:" not in done.out


async def test_file_can_have_the_form_of_openai(
    gateway: ScriptedGateway, strata: Run, tmp_path: Path
) -> None:
    file = tmp_path / "format.json"
    form = {"name": "weather", "description": "It.", "strict": False, "schema": SCHEMA}
    file.write_text(json.dumps({"type": "json_schema", "json_schema": form}))
    assert (await strata("agents", "create", "al", "--response-format", str(file))).code == 0
    asked = gateway.agents.created[0].response_format.json_schema
    assert (asked.name, asked.description, asked.strict) == ("weather", "It.", False)
    assert asked.HasField("strict")
    assert asked.schema_json == json.dumps(SCHEMA)


@pytest.mark.parametrize("content", [None, "{", "\0"])
async def test_invalid_response_format_is_wrong_usage(
    gateway: ScriptedGateway, strata: Run, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "format.json"
    if content is not None:
        file.write_text(content)
    done = await strata("agents", "create", "al", "--response-format", str(file))
    assert done.code == 2, done
    assert gateway.agents.created == []
