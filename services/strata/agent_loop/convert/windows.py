"""What fills a context window, in the contract's form."""

from __future__ import annotations

from strata.agent_loop.domain.messages import Window
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.inspection import describe
from strata.agent_loop.loop.ports import BoundModel
from strata.agent_loop.models.domain import DEFAULT_CONTEXT_WINDOW, EndpointType
from strata.agent_loop.models.tokens import TokenEstimator, TokenKey
from strata.api.agent_loop.v1 import agent_service_pb2 as pb


def window_to_proto(
    window: Window,
    toolset: ToolSet,
    bound: BoundModel | None,
    agent_id: str,
    tokens: TokenEstimator,
) -> pb.GetContextWindowResponse:
    """Returns the parts of a window with estimated token counts."""
    key = TokenKey(EndpointType.OPENAI, "", agent_id)
    size = DEFAULT_CONTEXT_WINDOW
    if bound is not None:
        key = TokenKey(bound.settings.endpoint_type, bound.settings.model, agent_id)
        size = bound.settings.context_window
    parts = describe(window, toolset, lambda count: tokens.estimate(key, count))
    return pb.GetContextWindowResponse(
        context_window=size,
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
    )
