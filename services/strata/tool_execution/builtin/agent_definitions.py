"""Definitions of the tools that send messages to other agents."""

from __future__ import annotations

from strata.shared.tool_catalogue import ASK_MEMBERS, HAND_OVER
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

# The agent loop adds the members of the group to the descriptions, and to the schema of the
# argument that names one.
SEND_TO_GROUP = builtin(
    name=ASK_MEMBERS,
    description=(
        "Ask all other agents of this group the same and wait for their answers. They are told who"
        " you are, and see nothing of your conversation but this message. Returns one reply per"
        " agent. Only you talk to the user: use the answers in your own reply."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(["message"], message=_MESSAGE),
)

HAND_CONVERSATION_OVER = builtin(
    name=HAND_OVER,
    description=(
        "Hand this conversation over to another agent of this group, if that one is better suited"
        " to answer. It sees what was said, answers the user now and keeps the conversation from"
        " then on. Your turn ends with this call; do not answer the user yourself as well."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(
        ["agent", "message"],
        agent=text("The agent that takes over."),
        message=text("What the other agent should know or do; may be empty."),
    ),
)

AGENT_TOOLS = (
    SEND_AND_WAIT,
    SEND_TO_TAGGED,
    SEND_ASYNC,
    SEND_TO_GROUP,
    HAND_CONVERSATION_OVER,
)
