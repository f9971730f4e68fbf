"""The arguments that the V2 loop adds are removed from complete and from streamed calls."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.context.added_arguments import (
    ArgumentsStream,
    CallForm,
    added_names,
    take_out,
    with_added,
)
from strata.agent_loop.context.requests import View
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.types import AGENT_TYPES, LoopKind
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ModelReply,
    ReasoningPart,
    ToolCall,
    ToolSchema,
)
from strata.agent_loop.domain.model.proofs import is_thought
from strata.agent_loop.domain.model.proofs import thought as thought_part
from strata.agent_loop.domain.tools import Tool
from strata.agent_loop.loop.calls import tidy
from strata.agent_loop.loop.strategy import V3, V2Loop, strategy_of
from strata.shared.messages import MessageRole
from strata.shared.usage import Usage

BOTH = frozenset({"thinking", "request_heartbeat"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
NAMES = st.text() | st.sampled_from(['a"', "}", "request_heartbeat"])
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)


def tool(**properties: Any) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(ToolSchema("look", "Looks.", parameters))


@given(
    arguments=ARGUMENTS,
    thought=st.text(),
    size=st.integers(1, 9),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
)
def test_streamed_arguments_equal_the_stored_ones(
    arguments: dict[str, Any], thought: str, size: int, indent: int | None, ascii_only: bool
) -> None:
    whole = {"thinking": thought, **arguments}
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii_only)
    stream = ArgumentsStream(BOTH)
    pieces = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    streamed = "".join(piece for piece, _ in pieces)
    taken = take_out(ToolCall("1", "look", text), BOTH, heartbeat=True)
    kept = {name: value for name, value in arguments.items() if name not in BOTH}
    assert json.loads(streamed) == json.loads(taken.call.arguments) == kept
    if "thinking" not in arguments:
        assert "".join(piece for _, piece in pieces) == taken.thought == thought
    assert taken.call.request_heartbeat is (arguments.get("request_heartbeat") is True)


@given(text=st.text(), size=st.integers(1, 5))
def test_text_that_is_not_an_object_is_passed_on_unchanged(text: str, size: int) -> None:
    stream = ArgumentsStream(BOTH)
    pieces = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    if not text.lstrip().startswith("{"):
        assert "".join(piece for piece, _ in pieces) == text
    if not text.strip().startswith("{"):
        assert take_out(ToolCall("1", "look", text), BOTH, heartbeat=True).call.arguments == text


@given(arguments=st.dictionaries(st.text(), VALUES, max_size=4), thought=st.text(min_size=1))
def test_a_stored_call_is_shown_as_the_model_wrote_it(
    arguments: dict[str, Any], thought: str
) -> None:
    kept = {name: value for name, value in arguments.items() if name not in BOTH}
    written = json.dumps({"thinking": thought, **kept, "request_heartbeat": True}, indent=2)
    taken = take_out(ToolCall("1", "look", written), BOTH, heartbeat=True)
    form = CallForm(thoughts=True)
    content, (call,) = form.shown((thought_part(taken.thought),), (taken.call,))
    assert content == ()
    assert call.arguments == json.dumps(json.loads(written), indent=2, ensure_ascii=False)


def test_signed_reasoning_is_not_the_thought_of_a_call() -> None:
    signed = ReasoningPart("of the provider", signature="s")
    content, (call,) = CallForm(thoughts=True).shown((signed,), (ToolCall("1", "look", ""),))
    assert content == (signed,)
    assert json.loads(call.arguments) == {"thinking": ""}


def test_a_parameter_of_the_tool_itself_is_neither_added_nor_removed() -> None:
    own = tool(thinking={"type": "integer"}, q={"type": "string"})
    offered = with_added(own, thoughts=True, heartbeat=True).parameters
    assert offered["properties"]["thinking"] == {"type": "integer"}
    assert offered["required"] == ["thinking", "q", "request_heartbeat"]
    names = added_names(own, thoughts=True)
    call = ToolCall("1", "look", '{"thinking": 3, "request_heartbeat": "True"}')
    taken = take_out(call, names, heartbeat=True)
    assert json.loads(taken.call.arguments) == {"thinking": 3}
    assert taken.call.request_heartbeat is True


def test_each_type_has_the_loop_of_the_table() -> None:
    for kind, traits in AGENT_TYPES.items():
        loop = strategy_of(Agent("agent-1", "x", kind, ""))
        assert (loop is V3) is (traits.loop is LoopKind.V3)
        assert isinstance(loop, V2Loop) is (traits.loop is LoopKind.V2)


def test_thought_of_another_model_is_shown_in_its_call() -> None:
    call = ToolCall("1", "look", "{}")
    written = Message(
        "message-1", MessageRole.ASSISTANT, (thought_part("Why."), call), model="a/first"
    )
    view = View(5_000, model="b/second", form=CallForm(thoughts=True))
    (shown,) = view.chat(written)
    assert json.loads(shown.tool_calls[0].arguments) == {"thinking": "Why."}


def test_unsigned_reasoning_of_a_model_is_not_the_thought_of_a_call() -> None:
    call = ToolCall("1", "look", "{}")
    reasoning = ReasoningPart("Of a service that signs nothing.")
    reply = Message("message-1", MessageRole.ASSISTANT, (reasoning, call), model="a/first")
    form = CallForm(thoughts=True)
    (own,) = View(5_000, model="a/first", form=form).chat(reply)
    (other,) = View(5_000, model="b/second", form=form).chat(reply)
    assert (own.content, other.content) == ((reasoning,), ())
    assert own.tool_calls == other.tool_calls
    assert json.loads(own.tool_calls[0].arguments) == {"thinking": ""}


def test_a_nul_character_is_removed_from_a_thought() -> None:
    reply = ModelReply((thought_part("a\0b"),), (), FinishReason.STOP, Usage(), "m")
    (part,) = tidy(reply, ()).content
    assert is_thought(part)
    assert "\0" not in part.text


def test_half_a_surrogate_pair_is_replaced_in_arguments_and_thoughts() -> None:
    text = '{"thinking": "a\\ud800b", "message": "\\ud83d x", "request_heartbeat": true}'
    taken = take_out(ToolCall("1", "look", text), BOTH, heartbeat=True)
    assert json.loads(taken.call.arguments) == {"message": "? x"}
    assert taken.thought == "a?b"
    (taken.call.arguments + taken.thought).encode()


def test_a_heartbeat_parameter_of_the_tool_itself_is_kept() -> None:
    call = ToolCall("1", "look", '{"request_heartbeat": true}')
    taken = take_out(call, added_names(tool(request_heartbeat={}), thoughts=False), heartbeat=True)
    assert taken.call.request_heartbeat is None
    _, (shown,) = CallForm(thoughts=False).shown((), (taken.call,))
    assert json.loads(shown.arguments) == {"request_heartbeat": True}


def test_names_that_are_written_with_escapes_do_not_reach_the_client() -> None:
    text = '{"thinkin\\u0067": "private", "a": 1, "request_heartbea\\u0074": true}'
    stream = ArgumentsStream(BOTH)
    arguments, thought = stream.feed(text)
    assert (json.loads(arguments), thought) == ({"a": 1}, "private")
