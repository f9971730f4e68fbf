"""What fills a context window, in the contract's form."""

from __future__ import annotations

from strata.agent_loop.compaction.by_hand import Freed
from strata.agent_loop.convert.messages import message_to_proto
from strata.agent_loop.domain.agents import Agent
from strata.agent_loop.domain.messages import Window
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.inspection import describe
from strata.agent_loop.loop.gauge import Gauge
from strata.agent_loop.loop.packaging import return_limit
from strata.agent_loop.loop.ports import BoundModel
from strata.agent_loop.loop.requests import View
from strata.agent_loop.models.domain import EndpointType, ModelSettings
from strata.agent_loop.models.tokens import TokenEstimator
from strata.api.agent_loop.v1 import agent_service_pb2 as pb

# Stands in where no model is configured: the most common protocol, the default window.
_NO_MODEL = ModelSettings("", EndpointType.OPENAI, "")


def window_to_proto(
    agent: Agent,
    window: Window,
    toolset: ToolSet,
    bound: BoundModel | None,
    tokens: TokenEstimator,
) -> pb.GetContextWindowResponse:
    """Returns the parts of a window.

    The tokens are those of the model's last exact count, shared out by bytes, with an estimate of
    what came since.
    """
    settings = bound.settings if bound is not None else _NO_MODEL
    view = View(return_limit(settings.context_window), agent.timezone)
    gauge = Gauge(tokens, settings, agent.id)
    gauge.read(window.messages, toolset, view)
    parts = describe(window, toolset, view, gauge.estimate)
    return pb.GetContextWindowResponse(
        context_window=settings.context_window,
        used_tokens=sum(part.tokens for part in parts),
        parts=[
            pb.ContextWindowPart(
                name=part.name,
                tokens=part.tokens,
                characters=part.characters,
                count=part.count,
            )
            for part in parts
        ],
        system_message=window.messages[0].text if window.messages else "",
        estimated=True,
        compaction_tokens=gauge.usable_tokens,
    )


def freed_to_proto(freed: Freed) -> pb.CompactConversationResponse:
    """Returns what a compaction did."""
    return pb.CompactConversationResponse(
        summary=message_to_proto(freed.summary) if freed.summary is not None else None,
        tokens_before=freed.tokens_before,
        tokens_after=freed.tokens_after,
    )
