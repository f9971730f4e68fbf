"""Forms that are kept with messages: each request equals one that is built from new messages."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from histories import histories
from strata.agent_loop.context.added_arguments import CallForm
from strata.agent_loop.context.requests import BLIND_MODEL, Offer, View, build_request
from strata.agent_loop.domain.agent.agents import MessagePackaging
from strata.agent_loop.domain.conversation.messages import Message, ToolReturn
from strata.agent_loop.domain.conversation.taint import taint_of_messages
from strata.agent_loop.domain.model.chat import ModelRequest, ModelSettings, TextPart, ToolSchema
from strata.agent_loop.domain.model.quirks import Quirks
from strata.agent_loop.domain.run.request_digest import digest_request
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.models.anthropic_api import messages_wire
from strata.agent_loop.models.openai_api import chat_completions_wire
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance

_VIEW = View(5000)
_VIEWS = st.sampled_from(
    [
        _VIEW,
        View(300),
        View(5000, timezone="Asia/Tokyo", packaging=MessagePackaging(pack_user_messages=True)),
        View(5000, without_images=BLIND_MODEL, model="other/model"),
        View(5000, form=CallForm(thoughts=True)),
        View(5000, form=CallForm(thoughts=False, json_replies=True)),
    ]
)
_QUIRKS = st.sampled_from(
    [
        Quirks(),
        Quirks(call_id_length=9, joined_users=True, reply_after_tool=True),
        Quirks(reasoning_field="reasoning_content"),
        Quirks(call_signatures=True, unsigned_call="none", calls_follow_user=True),
        Quirks(system_first=True, user_before_calls=True, user_last=True),
    ]
)
_TOOL = ToolSchema("tool", "A tool.", {"type": "object", "properties": {}})
_SIZES = st.sampled_from([1e9, 20_000, 3_000])


@given(messages=histories(most=30, huge=300), cases=st.lists(
    st.tuples(_VIEWS, _QUIRKS, _SIZES, st.integers(0, 3)), min_size=2, max_size=5))  # fmt: skip
def test_a_request_of_messages_that_were_shown_before_equals_one_of_new_messages(
    messages: list[Message], cases: Sequence[tuple[View, Quirks, float, int]]
) -> None:
    for view, quirks, max_bytes, left_out in cases:
        # An equal view that is another object, as each turn makes one.
        view = replace(view)
        window = [messages[0], *messages[1 + left_out :]]
        again = _forms(window, view, quirks, max_bytes)
        new = _forms([replace(message) for message in window], view, quirks, max_bytes)
        assert again == new


def _forms(window: list[Message], view: View, quirks: Quirks, max_bytes: float) -> list[Any]:
    fitted = build_request(window, Offer(ToolSet(())), view, max_bytes=max_bytes)
    # Some servers require more of a message if tools are offered.
    request = replace(fitted.request, tools=(_TOOL,))
    openai = ModelSettings("s/m", "openai", "m", quirks=quirks)
    anthropic = ModelSettings("s/m", "anthropic", "claude-haiku-4-5")
    return [
        fitted,
        chat_completions_wire.build(request, openai, official=False),
        messages_wire.build(request, anthropic),
        digest_request(fitted.request, window, 4.0, ""),
        taint_of_messages(window),
        view.size(window),
    ]


def test_labels_are_those_of_the_message_and_of_its_returns() -> None:
    tool_return = ToolReturn(
        "call-1", "tool", ToolStatus.OK, "{}",
        provenance=Provenance.TOOL, taint=(Provenance.WEB, Provenance.MCP),
    )  # fmt: skip
    message = Message(
        "message-1", MessageRole.TOOL, (tool_return,), provenance=(Provenance.TOOL, Provenance.WEB)
    )
    assert message.labels == (Provenance.TOOL, Provenance.WEB, Provenance.MCP)


def test_forms_that_are_kept_do_not_keep_a_message_in_memory() -> None:
    messages = [
        Message("message-1", MessageRole.SYSTEM, (TextPart("You remember."),)),
        Message("message-2", MessageRole.USER, (TextPart("Hello."),)),
    ]
    request: ModelRequest | None = None
    gc.disable()
    try:
        request = build_request(messages, Offer(ToolSet(())), _VIEW, max_bytes=1e9).request
        chat_completions_wire.build(request, ModelSettings("s/m", "openai", "m"), official=True)
        digest_request(request, messages, 4.0, "")
        shown = [weakref.ref(message) for message in (*messages, *request.messages)]
        del request
        messages.clear()
        assert [message() for message in shown] == [None] * 4
    finally:
        gc.enable()
