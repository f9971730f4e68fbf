"""The tools that send messages to other agents (blueprint §13.1, multi-agent tools)."""

from __future__ import annotations

from strata.tool_execution.builtin.schemas import builtin, parameters, text
from strata.tool_execution.domain.tools import ToolType

MAX_TAGS = 10

_MESSAGE = text("What to say, self-contained: the other agent sees nothing of your conversation.")
_OTHER = text("Id of the other agent, agent-...")


def _tags(description: str) -> dict[str, object]:
    return {
        "type": "array",
        "items": {"type": "string"},
        "maxItems": MAX_TAGS,
        "description": description,
    }


SEND_AND_WAIT = builtin(
    name="send_message_to_agent_and_wait_for_reply",
    description=(
        "Ask another agent of this server a question, or to do a task, and wait until it answers."
        " It is told who you are. Returns its reply, or says why there is none yet; a message that"
        " the agent still works on need not be sent again."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(["message", "other_agent_id"], message=_MESSAGE, other_agent_id=_OTHER),
)

SEND_TO_TAGGED = builtin(
    name="send_message_to_agents_matching_tags",
    description=(
        "Ask every other agent that has certain tags the same, and wait for their answers. They"
        " are told who you are. Returns one reply per agent."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(
        ["message", "match_all", "match_some"],
        message=_MESSAGE,
        match_all=_tags("Tags that an agent must all have; may be empty."),
        match_some=_tags("Tags of which an agent must have one at least; may be empty."),
    ),
)

SEND_ASYNC = builtin(
    name="send_message_to_agent_async",
    description=(
        "Tell another agent something without waiting for an answer. It is told who you are and"
        " works on it by itself; should it answer, its answer reaches you as a message later."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(["message", "other_agent_id"], message=_MESSAGE, other_agent_id=_OTHER),
)

AGENT_TOOLS = (SEND_AND_WAIT, SEND_TO_TAGGED, SEND_ASYNC)
