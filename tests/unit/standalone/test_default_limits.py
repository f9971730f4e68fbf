"""The defaults of the services fit together."""

from __future__ import annotations

from strata.agent_loop.settings import AgentLoopSettings
from strata.gateway.settings import GatewaySettings


def test_an_agent_loop_accepts_as_many_turns_as_a_gateway_runs_at_once() -> None:
    runs = GatewaySettings.model_fields["runs_at_once"].default
    limits = AgentLoopSettings.model_fields["limits"].get_default(call_default_factory=True)
    assert limits.max_in_flight_streams >= runs
    # The gateway gives a project three quarters of its runs.
    assert limits.max_in_flight_streams * limits.project_share >= runs * 3 // 4
