"""Random conversations for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from doubles import anthropic_dialect, responses_dialect
from hostile_json import HOSTILE_ARGUMENTS
from image_samples import png
from strata.agent_loop.domain.model.chat import (
    ChatMessage,
    ChatRole,
    ImageDetail,
    ImagePart,
    PromptPart,
    ReasoningPart,
    ShownImage,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSchema,
)
from strata.agent_loop.models.openai_api import responses_wire

IDS = st.sampled_from(["call_0", "call_0", "toolu:ü", "", "x" * 29 + "1", "x" * 29 + "2"])
TEXTS = st.sampled_from(["", "  ", "\u200b", "hello", "\ud800", "ünï\x00", '{"a": 1}'])
ARGUMENTS = st.sampled_from(
    ["{}", '{"a": [1]}', "", "null", "[1]", '{"a":', '{"a": NaN}', *HOSTILE_ARGUMENTS.values()]
)
CALLS = st.builds(ToolCall, IDS, st.sampled_from(["a", "b"]), ARGUMENTS)
THOUGHTS = st.sampled_from(
    [
        ReasoningPart("hm", anthropic_dialect.signature("hm")),
        ReasoningPart("unsigned"),
        ReasoningPart("", redacted="opaque"),
        *(
            responses_wire.reasoning_part(text, responses_dialect.encrypted(text, ""), before)
            for text, before in (("", 0), ("hm", 0), ("well", 1), ("so", 5))
        ),
    ]
)
IMAGES = st.builds(
    lambda shade, detail: ShownImage(
        ImagePart("image/png", detail=detail, data=png(2, 2, shade)), weight=10
    ),
    st.integers(0, 255),
    st.sampled_from(ImageDetail),
)


@st.composite
def messages(draw: st.DrawFn) -> ChatMessage:
    role = draw(st.sampled_from(ChatRole))
    content: list[PromptPart] = [TextPart(draw(TEXTS))]
    if role in (ChatRole.TOOL, ChatRole.USER):
        content += draw(st.lists(IMAGES, max_size=2))
    if role is ChatRole.TOOL:
        return ChatMessage(role, tuple(content), tool_call_id=draw(IDS))
    if role is not ChatRole.ASSISTANT:
        return ChatMessage(role, tuple(content))
    thoughts = draw(st.lists(THOUGHTS, max_size=2))
    calls = draw(st.lists(CALLS, max_size=3))
    return ChatMessage(role, (*thoughts, *content), tuple(calls))


CONVERSATIONS = st.lists(messages(), max_size=12)
TOOLS = [ToolSchema("a", "A.", {"type": "object", "properties": {"x": {"type": "string"}}})]
CHOICES = st.sampled_from(
    [ToolChoice(), ToolChoice.required(), ToolChoice.none(), ToolChoice.named("a")]
)
