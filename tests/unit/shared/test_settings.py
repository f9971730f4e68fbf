"""Settings of a room: prefix, nesting, limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from strata.shared.settings import RoomSettings, room_config


class RecallSettings(RoomSettings):
    model_config = room_config("recall")


def test_fields_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_RECALL_PORT", "7103")
    monkeypatch.setenv("STRATA_RECALL_LIMITS__MAX_IN_FLIGHT_UNARY", "7")
    monkeypatch.setenv("STRATA_RECALL_TARGETS__CORE_MEMORY", "dns:///core-memory:7102")
    monkeypatch.setenv("STRATA_ARCHIVAL_PORT", "1")
    settings = RecallSettings()
    assert settings.port == 7103
    assert settings.limits.max_in_flight_unary == 7
    assert settings.limits.max_message_bytes == 16 * 1024 * 1024
    assert settings.targets == {"core_memory": "dns:///core-memory:7102"}


def test_settings_do_not_change_once_built() -> None:
    settings = RecallSettings()
    with pytest.raises(ValidationError):
        settings.port = 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "70000"), ("LOG_LEVEL", "LOUD"), ("LIMITS__MAX_MESSAGE_BYTES", "0")],
)
def test_nonsense_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"STRATA_RECALL_{name}", value)
    with pytest.raises(ValidationError):
        RecallSettings()


def test_a_settings_object_can_be_shown_without_its_secrets() -> None:
    settings = RecallSettings(database_url="postgresql://u:hidden@h/d")
    assert "hidden" not in repr(settings)


def test_public_keys_come_from_the_text_or_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token_public_keys"):
        RecallSettings().public_keys()
    file = tmp_path / "keys.pem"
    file.write_text("from the file")
    assert RecallSettings(token_public_keys_file=file).public_keys() == "from the file"
    both = RecallSettings(token_public_keys="given", token_public_keys_file=file)
    assert both.public_keys() == "given"
