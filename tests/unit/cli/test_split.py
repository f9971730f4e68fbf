"""Settings that a service in its own process reads from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.standalone.compose.split import environment_of
from strata.tool_execution.settings import ToolExecutionSettings


def test_service_reads_its_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, object] = {
        "host": "127.0.0.1",
        "port": 7605,
        "drain_s": 0.5,
        "database_url": "postgresql://somewhere",
        "targets": {"recall": "127.0.0.1:7603"},
        "packages": False,
        "packages_path": Path("/data/packages of tools"),
    }
    for name, text in environment_of("tool_execution", values).items():
        monkeypatch.setenv(name, text)
    read = ToolExecutionSettings()
    assert {name: getattr(read, name) for name in values} == values
    assert environment_of("tool_execution", {"packages": True}) == {
        "STRATA_TOOL_EXECUTION_PACKAGES": "true"
    }
    with pytest.raises(TypeError, match="object is not a setting"):
        environment_of("tool_execution", {"packages_path": object()})
