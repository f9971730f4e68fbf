"""Environment variables that a service in its own process inherits from ``strata``."""

from __future__ import annotations

import pytest

from strata.standalone.compose.services import ALL_SERVICES
from strata.standalone.settings import environment_of_service

SECRETS = {
    "STRATA_API_KEY": "an API key",
    "STRATA_ORGANIZATION_KEY": "an organization key",
    "STRATA_DATABASE_ADMIN_URL": "postgresql://admin",
    "STRATA_MCP_TOKEN": "a token",
    "OPENAI_API_KEY": "a provider's key",
    "ANTHROPIC_API_KEY": "another provider's key",
    "AWS_SECRET_ACCESS_KEY": "none of ours",
    "STRATA_TRACES_HEADERS": "the key of a collector",
    **{f"STRATA_{spec.name.upper()}_SOME_KEY": f"that of {spec.name}" for spec in ALL_SERVICES},
}


@pytest.mark.parametrize("service", [spec.name for spec in ALL_SERVICES])
def test_a_service_gets_only_its_own_settings(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "/usr/bin")
    environment = environment_of_service(service)
    expected = {f"STRATA_{service.upper()}_SOME_KEY"}
    if service == "agent_loop":
        expected |= {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    if service != "tool_runner":
        expected.add("STRATA_TRACES_HEADERS")
    assert set(environment) & set(SECRETS) == expected
    assert environment["PATH"] == "/usr/bin"


@pytest.mark.parametrize("reason", ["BEDROCK_BASE_URL", "STRATA_AGENT_LOOP_MODEL_ENDPOINTS"])
def test_credentials_of_the_machine_reach_the_agent_loop_only_where_bedrock_is_set(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert "AWS_SECRET_ACCESS_KEY" not in environment_of_service("agent_loop")
    monkeypatch.setenv(reason, '[{"name": "b", "preset": "bedrock", "base_url": "https://x"}]')
    assert "AWS_SECRET_ACCESS_KEY" in environment_of_service("agent_loop")
    assert "AWS_SECRET_ACCESS_KEY" not in environment_of_service("recall")
