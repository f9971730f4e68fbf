"""The first messages of a new agent (docs/wire-format.md#first-messages)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime

from strata.agent_loop.context.packaging import pack_login, package
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.types import AGENT_TYPES, Boot
from strata.agent_loop.domain.conversation.messages import (
    Message,
    MessagePart,
    MessageRole,
    ToolReturn,
    ToolStatus,
)
from strata.agent_loop.domain.conversation.provenance import Provenance
from strata.agent_loop.domain.model.chat import TextPart, ToolCall
from strata.agent_loop.domain.model.proofs import thought
from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.models.ids import new_call_id
from strata.shared.ids import new_id

BOOT_THOUGHT = "Bootup sequence complete. Persona activated. Testing messaging functionality."
"""Reasoning of the boot message."""

BOOT_MESSAGE = "More human than human is our motto."
"""Text of the boot message."""

BOOT_TOOL = "send_message"
_SHORT_ID = 9
"""Length of call ids for servers whose templates refuse longer ones."""


def first_messages(
    agent: Agent, conversation_id: str, now: datetime, quirks: Quirks
) -> list[Message]:
    """Returns the messages after the system message of an agent created without initial messages.

    For types with boot messages these are a call of ``send_message`` and its return, if the agent
    has that tool, and the login event. The login comes first for servers that require a user
    message before any call.

    Args:
        agent: The agent.
        conversation_id: The new conversation.
        now: Time of the return and of the login.
        quirks: Quirks of the agent's model.
    """
    if AGENT_TYPES[agent.type].boot is Boot.NONE:
        return []

    def message(role: MessageRole, *parts: MessagePart) -> Message:
        return Message(
            id=new_id("message"),
            role=role,
            parts=parts,
            conversation_id=conversation_id,
            agent_id=agent.id,
            # Neither the model nor the user wrote any of them.
            provenance=(Provenance.SYSTEM,),
        )

    login = message(MessageRole.USER, TextPart(pack_login(now, agent.timezone)))
    if BOOT_TOOL not in agent.tools:
        return [login]
    call_id = uuid.uuid4().hex[:_SHORT_ID] if quirks.user_before_calls else new_call_id()
    call = ToolCall(call_id, BOOT_TOOL, json.dumps({"message": BOOT_MESSAGE}))
    content = package(ToolStatus.OK, None, now, agent.timezone)
    returned = ToolReturn(call_id, BOOT_TOOL, ToolStatus.OK, content, provenance=Provenance.SYSTEM)
    boot: Sequence[Message] = (
        message(MessageRole.ASSISTANT, thought(BOOT_THOUGHT), call),
        message(MessageRole.TOOL, returned),
    )
    return [login, *boot] if quirks.user_before_calls else [*boot, login]
