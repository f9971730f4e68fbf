"""Folders where a local Strata searches for system prompts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata.shared.auth import generate_key_pair
from strata.standalone.compose.local import Local
from strata.standalone.data_folder import DataFolder


def prompts_path(folder: Path) -> Any:
    """The folder of prompts that the agent loop of a local Strata gets."""
    database = SimpleNamespace(service_url="postgresql://", worker_url="postgresql://")
    storage: Any = SimpleNamespace(databases={"agent_loop": database})
    model: Any = SimpleNamespace(endpoints=(), default_model="")
    gateway: Any = SimpleNamespace(log_level="WARNING", log_format="console")
    [private, worker] = [generate_key_pair()[0] for _ in range(2)]
    local = Local(DataFolder(folder), storage, model, gateway, private, worker, "", "")
    return local.service_values("agent_loop")["prompts_path"]


def test_prompts_are_searched_in_the_data_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STRATA_AGENT_LOOP_PROMPTS_PATH", raising=False)
    assert prompts_path(tmp_path) == tmp_path / "prompts"


def test_setting_names_another_folder_of_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_AGENT_LOOP_PROMPTS_PATH", str(tmp_path / "mine"))
    assert prompts_path(tmp_path / "data") == tmp_path / "mine"
