"""The defaults of the services fit together."""

from __future__ import annotations

import pytest

from strata.agent_loop.settings import AgentLoopSettings
from strata.gateway.settings import GatewaySettings
from strata.shared.settings import ServiceSettings
from strata.tool_execution.settings import ToolExecutionSettings


@pytest.mark.parametrize("settings", [AgentLoopSettings, ToolExecutionSettings])
def test_a_service_accepts_as_many_streams_as_a_gateway_runs_at_once(
    settings: type[ServiceSettings],
) -> None:
    runs = GatewaySettings.model_fields["runs_at_once"].default
    limits = settings.model_fields["limits"].get_default(call_default_factory=True)
    assert limits.max_in_flight_streams >= runs
    # The gateway gives a project three quarters of its runs.
    assert limits.max_in_flight_streams * limits.project_share >= runs * 3 // 4
