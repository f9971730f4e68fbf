"""Settings of a service: prefix, nesting, limits."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any, Self, cast

import pytest
from pydantic import SecretStr, ValidationError, model_validator

from strata.agent_loop.settings import AgentLoopSettings
from strata.client.settings import ClientSettings
from strata.gateway.settings import GatewaySettings
from strata.protocol.errors import WrongSettingError
from strata.shared.settings import (
    ServiceSettings,
    settings_config,
    unknown_variables,
    warn_about_unknown_variables,
)
from strata.tool_execution.settings import ToolExecutionSettings


class RecallSettings(ServiceSettings):
    model_config = settings_config("recall")


def test_fields_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_invalid_values_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"STRATA_RECALL_{name}", value)
    with pytest.raises(WrongSettingError) as raised:
        RecallSettings()
    assert [violation.field for violation in raised.value.violations] == [f"STRATA_RECALL_{name}"]
    assert f"STRATA_RECALL_{name}" in raised.value.message


def test_json_that_cannot_be_read_is_refused_with_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STRATA_RECALL_TARGETS", "{core_memory}")
    with pytest.raises(WrongSettingError, match="STRATA_RECALL_TARGETS: must be JSON"):
        RecallSettings()


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(WrongSettingError, match="NONSENSE"):
        RecallSettings(**cast("Any", {"nonsense": 1}))


def test_variables_that_no_setting_reads_are_named() -> None:
    read = ["STRATA_RECALL_PORT", "strata_recall_host", "STRATA_RECALL_TARGETS__CORE_MEMORY"]
    others = ["STRATA_RECALLED", "STRATA_ARCHIVAL_NONSENSE", "STRATA_DATA", "PATH"]
    unread = ["STRATA_RECALL_CALL_TIMEOUT_S", "STRATA_RECALL_PORTS"]
    assert unknown_variables(RecallSettings, [*read, *others, *unread]) == unread


def test_the_second_name_of_a_variable_is_known() -> None:
    names = ["STRATA_AGENT_LOOP_OPENAI_API_KEY", "STRATA_AGENT_LOOP_OPENAI_API_KEYS"]
    assert unknown_variables(AgentLoopSettings, names) == names[1:]


def test_variables_that_no_setting_reads_are_logged_once_without_their_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STRATA_TOOL_EXECUTION_EGRESS_BYTES", "1234567")
    monkeypatch.setenv("STRATA_TOOL_EXECUTION_EGRESS_PORTS", "[1234567]")
    warn_about_unknown_variables(ToolExecutionSettings)
    warn_about_unknown_variables(RecallSettings)
    [line] = caplog.records
    assert line.levelname == "WARNING"
    names = "['STRATA_TOOL_EXECUTION_EGRESS_BYTES', 'STRATA_TOOL_EXECUTION_EGRESS_PORTS']"
    assert names in str(line.msg)
    assert "1234567" not in str(line.msg)


def test_an_unknown_limit_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_RECALL_LIMITS__UPLOAD_IDLE_S", "5")
    with pytest.raises(WrongSettingError, match="STRATA_RECALL_LIMITS__UPLOAD_IDLE_S"):
        RecallSettings()


def test_settings_that_contradict_each_other_are_named_by_their_variables() -> None:
    with pytest.raises(WrongSettingError) as raised:
        GatewaySettings(tls_certificate_file=Path("/tls.crt"))
    assert "STRATA_GATEWAY_TLS_CERTIFICATE_FILE and STRATA_GATEWAY_TLS_KEY_FILE" in str(
        raised.value
    )


def test_an_error_of_a_setting_does_not_show_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_GATEWAY_DATABASE_URL", "postgresql://u:hidden@h/d")
    monkeypatch.setenv("STRATA_GATEWAY_TLS_CERTIFICATE_FILE", "/tls.crt")
    monkeypatch.setenv("STRATA_GATEWAY_PORT", "hidden")
    with pytest.raises(WrongSettingError) as raised:
        GatewaySettings()
    assert "hidden" not in "".join(traceback.format_exception(raised.value))


def test_an_empty_variable_counts_as_unset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STRATA_RECALL_PORT", "")
    monkeypatch.setenv("STRATA_RECALL_LIMITS__MAX_MESSAGE_BYTES", "")
    monkeypatch.setenv("STRATA_DATA", "")
    monkeypatch.setenv("STRATA_TLS", "")
    assert RecallSettings() == RecallSettings(port=0)
    assert ClientSettings.from_environment() == ClientSettings()


def test_an_error_names_the_setting_and_not_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithKey(RecallSettings):
        api_key: SecretStr = SecretStr("")

        @model_validator(mode="after")
        def _check(self) -> Self:
            raise ValueError("these settings do not fit together")

    monkeypatch.setenv("STRATA_RECALL_API_KEY", "sk-0123456789")
    with pytest.raises(WrongSettingError, match="do not fit together") as together:
        WithKey()
    monkeypatch.setenv("STRATA_RECALL_PORT", "sk-0123456789")
    with pytest.raises(WrongSettingError, match="STRATA_RECALL_PORT") as alone:
        RecallSettings()
    for caught in (together, alone):
        assert "sk-0123456789" not in str(caught.value)


def test_a_settings_object_can_be_shown_without_its_secrets() -> None:
    settings = RecallSettings(database_url="postgresql://u:hidden@h/d")
    assert "hidden" not in repr(settings)


def test_public_keys_are_read_from_the_text_or_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token_public_keys"):
        RecallSettings().public_keys()
    file = tmp_path / "keys.pem"
    file.write_text("from the file")
    assert RecallSettings(token_public_keys_file=file).public_keys() == "from the file"
    both = RecallSettings(token_public_keys="given", token_public_keys_file=file)
    assert both.public_keys() == "given"


def test_the_tcp_ports_of_a_service_on_a_unix_socket_are_on_loopback() -> None:
    assert ServiceSettings(host="unix:/run/strata.sock").tcp_host == "127.0.0.1"
    assert ServiceSettings(host="0.0.0.0").tcp_host == "0.0.0.0"
