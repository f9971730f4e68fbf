"""The context window of an agent: the contents of the next request, and compaction."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.recall.v1 import message_service_pb2 as message_service
from strata.gateway.console.views.agents import agent_of
from strata.gateway.console.visits import ViewRoute, Visit

BAR_WIDTH = 1000
"""Width of the bar in units of the drawing."""

_DEFAULT_SHARE = 0.3
_MAX_PINNED = 100
_NAMES = {
    "system": "Instructions",
    "blocks": "Memory blocks",
    "files": "Open files",
    "rules": "Tool rules",
    "metadata": "Metadata",
    "tools": "Tools",
    "summary": "Summary",
    "messages": "Messages",
}


_OUTCOMES = {
    pb.COMPACTION_OUTCOME_KEPT: "stays",
    pb.COMPACTION_OUTCOME_SUMMARIZED: "is summarised",
    pb.COMPACTION_OUTCOME_REPLACED: "is replaced",
}
_OBSTACLES = {
    pb.COMPACTION_OBSTACLE_SPACE_IS_FREE: (
        "without the summary, the messages already leave as much space as a compaction frees"
    ),
    pb.COMPACTION_OBSTACLE_NO_OLDER_EXCHANGE: "there are no messages before the current exchange",
    pb.COMPACTION_OBSTACLE_OLDER_MESSAGES_PINNED: "all older messages are pinned",
    pb.COMPACTION_OBSTACLE_NO_MODEL: "no model is configured that could write the summary",
    pb.COMPACTION_OBSTACLE_WINDOW_NOT_FULL: "the next request fits",
    pb.COMPACTION_OBSTACLE_PROMPT_FILLS_WINDOW: "instructions and tools fill the window",
    pb.COMPACTION_OBSTACLE_PINNED_MESSAGES_FILL_SPACE: "pinned messages fill the window",
    pb.COMPACTION_OBSTACLE_WINDOW_IS_CLEARED: "each turn begins with an empty window",
}


async def context(visit: Visit) -> Response:
    """Shows what fills the context window of a conversation."""
    agent = await agent_of(visit)
    conversation_id = visit.query("conversation") or agent.default_conversation_id
    window, pinned, conversations = await asyncio.gather(
        visit.services.agents.GetContextWindow(
            pb.GetContextWindowRequest(agent_id=agent.id, conversation_id=conversation_id)
        ),
        visit.services.messages.ListMessages(
            message_service.ListMessagesRequest(
                conversation_id=conversation_id, pinned_only=True, page_size=_MAX_PINNED
            )
        ),
        visit.services.agents.ListConversations(
            pb.ListConversationsRequest(agent_id=agent.id, page_size=500)
        ),
    )
    trigger = (
        pb.COMPACTION_TRIGGER_NEXT_TURN if window.compaction_due else pb.COMPACTION_TRIGGER_REQUEST
    )
    preview = await visit.services.agents.PreviewCompaction(
        pb.PreviewCompactionRequest(
            agent_id=agent.id, conversation_id=conversation_id, trigger=trigger
        )
    )
    whole = max(window.context_window, window.used_tokens, 1)
    return visit.page(
        "context.html",
        agent=agent,
        conversation_id=conversation_id,
        conversations=conversations.conversations,
        window=window,
        bars=_bars(window, whole),
        names=_NAMES,
        whole=whole,
        width=BAR_WIDTH,
        compaction_at=round(window.compaction_tokens * BAR_WIDTH / whole),
        share=agent.compaction.sliding_window_percentage or _DEFAULT_SHARE,
        pinned=len(pinned.messages),
        preview=preview,
        preview_count=sum(
            total.message_count for total in (preview.kept, preview.summarized, preview.replaced)
        ),
        obstacle=_OBSTACLES.get(preview.obstacle, ""),
        outcomes=_OUTCOMES,
        kept=pb.COMPACTION_OUTCOME_KEPT,
    )


def _bars(
    window: pb.GetContextWindowResponse, whole: int
) -> list[tuple[pb.ContextWindowPart, float, float]]:
    """Returns each part that has tokens, with the place and the width of its bar."""
    bars, offset = [], 0.0
    for part in window.parts:
        if part.tokens:
            width = part.tokens * BAR_WIDTH / whole
            bars.append((part, offset, width))
            offset += width
    return bars


async def compact(visit: Visit) -> Response:
    """Replaces older messages by a summary."""
    agent_id, conversation_id = visit.argument("agent_id"), visit.form.text("conversation_id")
    response = await visit.services.agents.CompactConversation(
        pb.CompactConversationRequest(agent_id=agent_id, conversation_id=conversation_id)
    )
    if visit.by_htmx:
        return visit.page("parts/compacted.html", done=response)
    return visit.go_to(f"/agents/{agent_id}/context?conversation={conversation_id}")


VIEWS = (
    ViewRoute("/agents/{agent_id}/context", context),
    ViewRoute("/agents/{agent_id}/compact", compact, "POST"),
)
