"""Whole turns through the real services, with a scripted model behind the real SDK."""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
from typing import Any

import pytest

from chat_messages import roles
from doubles.script import Call, Fault, Reply, call, cut, overflow, say, unauthorized
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2
from strata.api.common.v1 import run_event_pb2 as event_pb
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.protocol.errors import AbortedError, NotFoundError, Reason
from strata.shared.ids import new_id

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_plain_turn_answers_and_stores_both_messages(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(say("Hello, Ada."))

    ran = await services.run(agent, "I am Ada.", stream_tokens=True)

    assert ran.kinds == [
        "run_started",
        "step_started",
        "text_delta",
        "message_stored",
        "run_finished",
    ]
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert ran.finished.step_count == 1
    assert ran.finished.usage.total_tokens > 0
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant"]
    assert ran.events[0].run_started.input_message_ids == [window.messages[1].id]
    streamed = [e.text_delta for e in ran.events if e.WhichOneof("event") == "text_delta"]
    assert "".join(delta.text for delta in streamed) == "Hello, Ada."
    assert {delta.message_id for delta in streamed} == {window.messages[2].id}


def texts_of(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of the messages of a request after the system message."""
    return [(m["role"], str(m.get("content"))) for m in body["messages"] if m["role"] != "system"]


async def test_a_run_of_an_agent_that_clears_its_window_begins_without_earlier_messages(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(message_buffer_autoclear=True)
    services.model.script(say("Hello, Ada."), say("I do not know."))
    await services.run(agent, "I am Ada.")
    ran = await services.run(agent, "Who am I?")
    assert texts_of(services.model.requests[-1].body) == [("user", "Who am I?")]
    assert "2 previous messages" in services.model.requests[-1].system
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant"]
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    listed = await services.messages.ListMessages(message_pb.ListMessagesRequest(agent_id=agent.id))
    assert len(listed.messages) == 5, "nothing is deleted"


async def test_call_ids_of_any_length_and_characters_are_accepted(services: InnerServices) -> None:
    for call_id in ("i" * 160, "i" * 5_000, "call/ü 1\n", "ü" * 64):
        agent = await services.make_agent()
        for number in range(2):
            new = Call("memory_insert", {"label": "human", "new_str": f"{number}."}, id=call_id)
            repeated = Call("archival_memory_insert", {"content": f"{number}."}, id=call_id)
            services.model.script(Reply(calls=[new]), Reply(calls=[repeated]), say("Noted."))
            ran = await services.run(agent, "I am Ada.")
            results = [e.tool_finished for e in ran.events if e.HasField("tool_finished")]
            statuses = {result.tool_return.status for result in results}
            assert statuses == {message_pb2.TOOL_STATUS_OK}, (call_id, results)
        system = services.model.requests[-1].system
        assert "0." in system
        assert "1." in system


@pytest.mark.parametrize("finish", ["content_filter", ""])
async def test_streamed_text_of_a_refused_reply_is_withdrawn(
    services: InnerServices, finish: str
) -> None:
    agent = await services.make_agent()
    refused = say("This is how you", finish=finish, refusal="" if finish else "I can not.")
    services.model.script(refused)

    ran = await services.run(agent, "How?", stream_tokens=True)

    assert ran.kinds[-3:] == ["text_delta", "step_restarted", "run_finished"]
    restarted = ran.events[-2].step_restarted
    assert restarted.given_up
    assert restarted.reason == ran.finished.error.message
    assert ran.finished.stop_reason == event_pb.STOP_REASON_LLM_API_ERROR
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user"]
    assert "This is how you" not in str(window)


@pytest.mark.parametrize(
    ("handle", "fields"),
    [
        ("test/test-model", {"refusal": "I can not."}),
        ("test/test-model", {"finish": "content_filter"}),
        # Google's names of its filters, as its servers for OpenAI's protocol send them.
        ("test/test-model", {"finish": "content_filter: PROHIBITED_CONTENT"}),
        ("test/test-model", {"finish": "SAFETY"}),
        ("claude/test-model", {"finish": "refusal"}),
    ],
)
@pytest.mark.parametrize("text", ["", "This is how you"])
async def test_a_refused_reply_is_counted_and_the_conversation_goes_on(
    services: InnerServices, handle: str, fields: dict[str, Any], text: str
) -> None:
    agent = await services.make_agent(model=agent_pb.ModelConfig(handle=handle))
    services.model.script(Reply(text=text, usage=(90, 10), **fields), say("Hello."))

    ran = await services.run(agent, "How?")
    after = await services.run(agent, "Hi.")

    assert ran.finished.stop_reason == event_pb.STOP_REASON_LLM_API_ERROR
    assert ran.finished.error.reason == "MODEL_REQUEST_REFUSED"
    assert not ran.finished.error.retryable
    assert "fork the conversation" in ran.finished.error.message
    usage = ran.finished.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (90, 10, False)
    assert after.text == "Hello."
    assert len(services.model.requests) == 2
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "user", "assistant"]


async def test_refusal_before_any_text_withdraws_nothing(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(unauthorized())
    ran = await services.run(agent, "How?", stream_tokens=True)
    assert "step_restarted" not in ran.kinds


@pytest.mark.parametrize(
    ("handle", "sent"),
    [
        ("test/test-model", {"reasoning_effort": "none"}),
        ("claude/test-model", {"thinking": {"type": "disabled"}}),
    ],
)
async def test_reasoning_is_turned_off_with_the_parameter_of_each_provider(
    services: InnerServices, handle: str, sent: dict[str, Any]
) -> None:
    model = agent_pb.ModelConfig(handle=handle, enable_reasoner=False)
    agent = await services.make_agent(model=model)
    assert agent.model.HasField("enable_reasoner")
    assert not agent.model.enable_reasoner
    services.model.script(say("Hello."))

    await services.run(agent, "Hi.")

    body = services.model.requests[-1].body
    assert {name: body.get(name) for name in sent} == sent


async def test_without_stream_tokens_no_delta_is_sent(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(say("Hello."))

    ran = await services.run(agent, "Hi.")

    assert "text_delta" not in ran.kinds


async def test_memory_edit_is_in_the_next_prompt_of_the_same_turn(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(
        call("memory_insert", {"label": "human", "new_str": "Her name is Ada."}),
        say("Noted."),
    )

    ran = await services.run(agent, "I am Ada.")

    assert ran.kinds == [
        "run_started",
        "step_started",
        "tool_started",
        "tool_finished",
        "message_stored",
        "message_stored",
        "step_started",
        "message_stored",
        "run_finished",
    ]
    first, second = services.model.requests
    assert "Her name is Ada." not in first.system
    assert "Her name is Ada." in second.system
    edit = next(e.tool_finished for e in ran.events if e.HasField("tool_finished"))
    assert [memory_edit.label for memory_edit in edit.memory_edits] == ["human"]
    window = await services.window(agent)
    assert roles(window.messages) == ["system", "user", "assistant", "tool", "assistant"]
    assert "Her name is Ada." in window.messages[0].parts[0].text.text


async def test_system_prompt_stays_the_same_while_memory_does(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(say("One."), say("Two."))

    await services.run(agent, "First.")
    await services.run(agent, "Second.")

    first, second = services.model.requests
    assert first.system == second.system
    before = [m for m in second.body["messages"] if m["role"] != "system"]
    assert [m["content"] for m in before] == ["First.", "One.", "Second."]


async def test_the_returns_of_one_reply_are_in_one_tool_message(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    calls = (
        Call("memory_insert", {"label": "human", "new_str": "Ada"}),
        Call("archival_memory_insert", {"content": "Likes tea.", "tags": ["taste"]}),
        Call("conversation_search", {"query": "tea"}),
    )
    services.model.script(Reply(text="A moment.", calls=calls), say("Done."))

    ran = await services.run(agent, "I am Ada and I like tea.")

    assistant, tool, _ = ran.messages
    assert [part.WhichOneof("content") for part in assistant.parts] == ["text"] + ["tool_call"] * 3
    returns = [part.tool_return for part in tool.parts]
    assert [part.name for part in returns] == [call.name for call in calls]
    assert [part.tool_call_id for part in returns] == [
        part.tool_call.tool_call_id for part in assistant.parts[1:]
    ]
    assert all(part.status == message_pb2.TOOL_STATUS_OK for part in returns)
    assert all(list(json.loads(part.content)) == ["status", "message", "time"] for part in returns)


async def test_archival_counts_are_renewed_at_the_next_turn_not_within_one(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    count_line = "- 1 total memories you created are stored in archival"
    note = {"content": "Likes tea.", "tags": ["taste"]}
    services.model.script(
        call("archival_memory_insert", note), say("Noted."), say("Tea."), say("Yes.")
    )

    await services.run(agent, "I like tea.")
    first, second = services.model.requests
    assert first.system == second.system
    assert (await services.window(agent)).metadata_stale

    await services.run(agent, "What do I like?")
    third = services.model.requests[-1]
    assert count_line in third.system
    assert "- Available archival memory tags: taste" in third.system
    assert not (await services.window(agent)).metadata_stale

    await services.run(agent, "Sure?")
    assert services.model.requests[-1].system == third.system


async def test_passages_that_others_store_are_announced_at_the_next_turn(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    services.model.script(say("Hi."), say("Yes."), say("Sure."), say("Gone."))
    await services.run(agent, "Hello.")

    passage = passage_pb.NewPassage(text="Ada likes tea.", tags=["taste"])
    insert = passage_pb.InsertPassageRequest(agent_id=agent.id, passage=passage)
    stored = (await services.passages.InsertPassage(insert)).passage
    await services.run(agent, "What does Ada like?")
    await services.run(agent, "Sure?")
    first, second, third = (request.system for request in services.model.requests)
    assert "archival memory" not in first.partition("<memory_metadata>")[2]
    assert "- 1 total memories you created are stored in archival" in second
    assert "- Available archival memory tags: taste\n" in second
    assert third == second, "what did not change does not cost the provider's cache"

    await services.passages.DeletePassage(passage_pb.DeletePassageRequest(passage_id=stored.id))
    await services.run(agent, "And now?")
    assert services.model.requests[-1].system.endswith(first.partition("<memory_metadata>")[2])
    assert "archival memory tags" not in services.model.requests[-1].system


async def test_an_import_during_a_turn_does_not_rebuild_the_prompt(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()

    signed_in = contextvars.copy_context()

    async def insert() -> None:
        number = len(services.model.requests)
        passage = passage_pb.NewPassage(text=f"Fact {number}.", tags=[f"tag{number}"])
        request = passage_pb.InsertPassageRequest(agent_id=agent.id, passage=passage)
        await services.passages.InsertPassage(request)

    async def insert_another(_: Any) -> None:
        await asyncio.create_task(insert(), context=signed_in)

    services.model.meanwhile = insert_another
    edit = Call("memory_insert", {"label": "human", "new_str": "Ada"})
    search = Call("conversation_search", {"query": "x"})
    services.model.script(
        Reply(calls=(search,)), Reply(calls=(edit,)), Reply(calls=(search,)), say("Done.")
    )
    try:
        await services.run(agent, "Look around.")
        services.model.script(say("Yes."))
        await services.run(agent, "Anything new?")
    finally:
        services.model.meanwhile = None
    one, two, three, four, *_, last = (request.system for request in services.model.requests)
    assert one == two
    assert three == four != one, "the edit is seen; the counts are those of the turn's start"
    for system in (one, three):
        assert "archival memory tags" not in system
    assert "- Available archival memory tags: tag1, tag2, tag3, tag4" in last


async def test_many_tags_leave_the_prompt_small_and_stable(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    for number in range(30):
        tags = [f"{number:02}-{other:02} " + "t" * 100 for other in range(60)]
        passage = passage_pb.NewPassage(text=f"Fact {number}.", tags=[*tags, "common"])
        request = passage_pb.InsertPassageRequest(agent_id=agent.id, passage=passage)
        await services.passages.InsertPassage(request)
    search = Call("conversation_search", {"query": "x"})
    services.model.script(Reply(calls=(search,)), say("Hi."), say("Yes."))
    await services.run(agent, "Hello.")
    await services.run(agent, "Hello again.")

    first, second, third = (request.system for request in services.model.requests)
    assert first == second == third
    (line,) = [line for line in first.splitlines() if line.startswith("- Available archival")]
    assert line.startswith("- Available archival memory tags: common, 00-00 t")
    assert re.search(r", and more than 1000 more$", line), line[-60:]
    assert len(line) < 1_200


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('{"label": "human", "new_str', "not valid JSON"),
        ("[1, 2]", "must be a JSON object"),
        ("null", "must be a JSON object"),
    ],
)
async def test_arguments_that_are_not_an_object_are_refused_and_stored_unchanged(
    services: InnerServices, arguments: str, error: str
) -> None:
    agent = await services.make_agent()
    services.model.script(call("memory_insert", arguments), say("Sorry."))

    ran = await services.run(agent, "Remember me.")

    assistant, tool, _ = ran.messages
    assert assistant.parts[0].tool_call.arguments == arguments
    assert tool.parts[0].tool_return.status == message_pb2.TOOL_STATUS_FAILED
    assert error in json.loads(tool.parts[0].tool_return.content)["message"]
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN


async def test_an_unknown_tool_is_refused_with_the_specified_message(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    services.model.script(call("launch_rocket", {}), say("I cannot."))

    ran = await services.run(agent, "Fly!")

    message = json.loads(ran.messages[1].parts[0].tool_return.content)["message"]
    assert message == (
        "[ToolConstraintError] Cannot call launch_rocket, valid tools include:"
        " ['conversation_search', 'memory_insert', 'memory_replace', 'archival_memory_insert',"
        " 'archival_memory_search', 'expand_summary']."
    )


async def test_max_steps_ends_the_run_and_the_next_one_continues(services: InnerServices) -> None:
    agent = await services.make_agent()
    search = {"query": "x"}
    services.model.script(call("conversation_search", search), call("conversation_search", search))

    ran = await services.run(agent, "Search.", max_steps=2)

    assert ran.finished.stop_reason == event_pb.STOP_REASON_MAX_STEPS
    assert ran.finished.step_count == 2
    services.model.script(say("Fine."))
    assert (await services.run(agent, "And?")).text == "Fine."


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (unauthorized(), "MODEL_AUTHENTICATION"),
        (Fault(400, "bad"), "MODEL_REQUEST_REFUSED"),
    ],
)
async def test_model_error_ends_the_run_and_the_message_is_kept(
    services: InnerServices, fault: Fault, reason: str
) -> None:
    agent = await services.make_agent()
    services.model.script(fault)

    ran = await services.run(agent, "Do not lose this.")

    assert ran.finished.stop_reason == event_pb.STOP_REASON_LLM_API_ERROR
    assert ran.finished.error.reason == reason
    assert roles((await services.window(agent)).messages) == ["system", "user"]
    services.model.script(say("Here again."))
    assert (await services.run(agent, "Still there?")).text == "Here again."


async def test_broken_stream_is_restarted(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(cut(after=2), say("Whole."))

    ran = await services.run(agent, "Hi.", stream_tokens=True)

    assert ran.kinds == [
        "run_started",
        "step_started",
        "text_delta",
        "step_restarted",
        "text_delta",
        "message_stored",
        "run_finished",
    ]
    assert ran.text == "Whole."


@pytest.mark.parametrize("empty", ["", "\0", " \u200b\n"], ids=["no text", "NUL", "zero width"])
async def test_an_empty_reply_is_requested_again_once(services: InnerServices, empty: str) -> None:
    agent = await services.make_agent()
    services.model.script(say(empty), say("Now."))
    assert (await services.run(agent, "Hi.")).text == "Now."

    services.model.script(say(empty), say(empty))
    ran = await services.run(agent, "Hello?")
    assert ran.finished.stop_reason == event_pb.STOP_REASON_INVALID_LLM_RESPONSE
    assert ran.finished.error.retryable
    assert ran.messages == []
    services.model.script(say("Back."))
    assert (await services.run(agent, "Anybody?")).text == "Back."


async def test_cut_at_the_token_limit_keeps_the_text(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(say("Once upon a", finish="length"))

    ran = await services.run(agent, "Tell a story.")

    assert ran.text == "Once upon a"
    assert ran.finished.stop_reason == event_pb.STOP_REASON_MAX_TOKENS_EXCEEDED


async def test_context_refusal_puts_a_summary_in_the_place_of_older_messages(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    for number in range(4):
        services.model.script(say(f"Answer {number}. " + "x" * 4000))
        await services.run(agent, f"Question {number}. " + "y" * 4000)
    services.model.script(overflow("openai"), say("- They asked and answered."), say("Short."))

    ran = await services.run(agent, "Last question.")

    assert ran.text == "Short."
    refused, summarised, answered = services.model.requests[-3:]
    assert "tools" not in summarised.body
    assert "Question 0." in summarised.last_text
    assert len(answered.body["messages"]) < len(refused.body["messages"])
    roles_shown = [message["role"] for message in answered.body["messages"]]
    assert roles_shown[:3] == ["system", "user", "user"]
    assert answered.body["messages"][-1]["content"] == "Last question."
    packed = json.loads(answered.body["messages"][1]["content"])
    assert list(packed) == ["type", "message", "time"]
    assert packed["type"] == "system_alert"
    assert packed["message"] == (
        "Note: prior messages have been hidden from view due to conversation memory constraints.\n"
        "The following is a summary of the previous messages:\n - They asked and answered."
    )
    (event,) = [e.window_compacted for e in ran.events if e.HasField("window_compacted")]
    assert event.tokens_after < event.tokens_before
    window = await services.window(agent)
    assert window.messages[1] == event.summary
    assert window.message_count == 12
    assert len(window.messages) == len(answered.body["messages"]) + 1
    assert not window.metadata_stale
    part = event.summary.parts[0].summary
    hidden = part.message_count
    assert f"- {hidden} previous messages" in answered.body["messages"][0]["content"]
    listed = await services.messages.ListMessages(
        message_pb.ListMessagesRequest(
            conversation_id=agent.default_conversation_id,
            from_message_id=part.first_message_id,
            to_message_id=part.last_message_id,
        )
    )
    assert len(listed.messages) == hidden
    assert listed.messages[0].parts[0].text.text.startswith("Question 0.")


async def test_third_context_refusal_ends_the_run(services: InnerServices) -> None:
    agent = await services.make_agent()
    services.model.script(say("A" * 4000))
    await services.run(agent, "B" * 4000)
    # The summarizer refuses as well.
    services.model.script(*[overflow("openai")] * 8)

    ran = await services.run(agent, "C")

    assert ran.finished.stop_reason == event_pb.STOP_REASON_LLM_API_ERROR
    assert ran.finished.error.reason == "CONTEXT_WINDOW_EXCEEDED"
    window = await services.window(agent)
    assert "excerpts of 2 messages" in window.messages[1].parts[0].summary.text
    services.model._steps.clear()


async def test_anthropic_sees_numbered_lines_and_openai_does_not(services: InnerServices) -> None:
    block = {"label": "human", "value": "Ada\nLondon"}
    model = agent_pb.ModelConfig(handle="claude/test-model", max_output_tokens=512)
    agent = await services.make_agent(blocks=[block], model=model)
    services.model.script(say("Hi."), say("Hi."))
    await services.run(agent, "Hello.")
    assert "1→ Ada\n2→ London" in services.model.requests[-1].system

    other = agent_pb.ModelConfig(handle="test/test-model")
    await services.agents.UpdateAgent(agent_pb.UpdateAgentRequest(agent_id=agent.id, model=other))
    await services.run(agent, "Hello.")
    assert "\nAda\nLondon\n" in services.model.requests[-1].system


async def test_unknown_agents_conversations_and_stale_attempts_are_errors(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    missing = agent_pb.Agent(
        id=new_id("agent"), default_conversation_id=agent.default_conversation_id
    )
    with pytest.raises(NotFoundError) as raised:
        await services.run(missing, "Hi.")
    assert raised.value.reason is Reason.AGENT_NOT_FOUND
    with pytest.raises(NotFoundError) as raised:
        await services.run(agent, "Hi.", conversation_id=new_id("conversation"))
    assert raised.value.reason is Reason.CONVERSATION_NOT_FOUND

    run_id = new_id("run")
    services.model.script(say("Two."))
    await services.run(agent, "Hi.", run_id=run_id, attempt=2)
    with pytest.raises(AbortedError) as aborted:
        await services.run(agent, "Hi.", run_id=run_id, attempt=1)
    assert aborted.value.reason is Reason.STALE_ATTEMPT


async def test_another_project_cannot_run_the_agent(services: InnerServices) -> None:
    agent = await services.make_agent()
    with services.signed_in(), pytest.raises(NotFoundError):
        await services.run(agent, "Hi.")


async def test_repeated_dispatch_of_a_finished_run_emits_its_events_again(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    run_id = new_id("run")
    services.model.script(call("conversation_search", {"query": "x"}), say("Done."))
    first = await services.run(agent, "Hi.", run_id=run_id)
    asked = len(services.model.requests)

    again = await services.run(agent, "Hi.", run_id=run_id, attempt=2)

    assert len(services.model.requests) == asked
    assert [m.id for m in again.messages] == [m.id for m in first.messages]
    assert again.finished.usage == first.finished.usage
    assert roles((await services.window(agent)).messages).count("user") == 1


async def test_conversations_of_one_agent_share_its_memory_only(services: InnerServices) -> None:
    agent = await services.make_agent()
    made = await services.agents.CreateConversation(
        agent_pb.CreateConversationRequest(agent_id=agent.id, title="Second")
    )
    services.model.script(
        call("memory_insert", {"label": "human", "new_str": "Ada"}), say("Noted."), say("Ada.")
    )
    await services.run(agent, "I am Ada.")
    await services.run(agent, "Who am I?", conversation_id=made.conversation.id)

    request = services.model.requests[-1]
    assert "Ada" in request.system
    assert [m["content"] for m in request.body["messages"][1:]] == ["Who am I?"]


async def test_turn_of_an_agent_that_is_deleted_meanwhile_is_cancelled(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    insert = Call("memory_insert", {"label": "human", "new_str": "Her name is Ada."})
    held = asyncio.Event()
    first = Reply(calls=[insert], text="Hello, and more than that.", held=held)
    services.model.script(first)
    services.model.received.clear()
    turn = asyncio.create_task(services.run(agent, "I am Ada."))
    await services.model.received.wait()

    await services.agents.DeleteAgent(agent_pb.DeleteAgentRequest(agent_id=agent.id))
    held.set()
    ran = await turn

    assert ran.finished.stop_reason == event_pb.STOP_REASON_CANCELLED
    assert not ran.finished.HasField("error")


async def test_a_turn_of_an_unknown_agent_is_not_found(services: InnerServices) -> None:
    agent = agent_pb.Agent(id=new_id("agent"))
    agent.default_conversation_id = agent.id.replace("agent-", "conversation-", 1)
    with pytest.raises(NotFoundError) as caught:
        await services.run(agent, "Hi.")
    assert caught.value.reason is Reason.AGENT_NOT_FOUND


async def test_messages_of_a_group_are_stored_with_their_sender_and_without_a_reply(
    services: InnerServices,
) -> None:
    agent = await services.make_agent()
    other = new_id("agent")
    group_id = new_id("group")
    asked = len(services.model.requests)
    ran = await services.run(
        agent, "Hi.", "Bo: Hello.", senders=["", other], group_id=group_id, record_only=True
    )
    assert ran.kinds == ["run_started", "run_finished"]
    assert ran.finished.stop_reason == event_pb.STOP_REASON_END_TURN
    assert len(services.model.requests) == asked
    window = (await services.window(agent)).messages
    assert roles(window) == ["system", "user", "user"]
    assert [message.group_id for message in window[1:]] == [group_id, group_id]
    assert [list(message.provenance) for message in window[1:]] == [
        [message_pb2.PROVENANCE_USER],
        [message_pb2.PROVENANCE_MODEL],
    ]
    services.model.script(say("Hello, Bo."))
    await services.run(agent, "And now?", group_id=group_id)
    assert (await services.window(agent)).messages[-1].group_id == group_id
