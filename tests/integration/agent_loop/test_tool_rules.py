"""Tool rules on the real services: stored, shown, sent to both providers, and enforced."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_messages import roles
from doubles.script import Call, Reply, say
from inner_services import InnerServices
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.common.v1 import message_pb2, run_event_pb2
from strata.api.common.v1 import tool_pb2 as tool
from strata.protocol.errors import FailedPreconditionError, InvalidArgumentError, Reason
from wire_tool_rules import rule

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEARCH = Call("conversation_search", {"query": "x"})


def insert(text: str) -> Call:
    return Call("memory_insert", {"label": "human", "new_str": text})


def replace(old: str, new: str) -> Call:
    return Call("memory_replace", {"label": "human", "old_str": old, "new_str": new})


def returned_messages(message: message_pb2.Message) -> list[tuple[str, str]]:
    returns = [part.tool_return for part in message.parts]
    bodies = [json.loads(tool_return.content) for tool_return in returns]
    return [(body["status"], str(body["message"])) for body in bodies]


async def test_rules_are_stored_shown_in_the_prompt_and_replaced(services: InnerServices) -> None:
    rules = [
        rule("max_count_per_step", "memory_insert", max_count_limit=2),
        rule("run_first", "conversation_search"),
        rule("continue_loop", "memory_insert"),
        rule("required_before_exit", "memory_insert"),
    ]
    agent = await services.make_agent(tool_rules=rules)
    assert list(agent.tool_rules) == rules
    got = await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))
    assert list(got.agent.tool_rules) == rules

    system = (await services.window(agent)).messages[0].parts[0].text.text
    section = system[system.index("<tool_usage_rules>") : system.index("</tool_usage_rules>")]
    assert section.count("<tool_rule>") == 3
    assert (
        "<tool_rule>\nmemory_insert requires continuing your response when called\n</tool_rule>\n"
        "<tool_rule>\nmemory_insert: at most 2 use(s) per response\n</tool_rule>\n"
    ) in section

    request = pb.UpdateAgentRequest(agent_id=agent.id, description="x")
    assert list((await services.agents.UpdateAgent(request)).agent.tool_rules) == rules
    request = pb.UpdateAgentRequest(agent_id=agent.id, set_tool_rules=True, tool_rules=rules[:1])
    assert list((await services.agents.UpdateAgent(request)).agent.tool_rules) == rules[:1]
    request = pb.UpdateAgentRequest(agent_id=agent.id, set_tool_rules=True)
    assert list((await services.agents.UpdateAgent(request)).agent.tool_rules) == []


async def test_fresh_agent_with_rules_is_not_rendered_again_in_its_first_turn(
    services: InnerServices,
) -> None:
    """Rendering it again would invalidate the prompt cache of the provider."""
    agent = await services.make_agent(
        tool_rules=[rule("parent_last_tool", "memory_insert", children=["memory_replace"])]
    )
    before = (await services.window(agent)).messages[0].parts[0].text.text
    services.model.script(say("Hi."))
    await services.run(agent, "Hello.")
    assert services.model.requests[0].system == before


async def test_rules_of_the_type_are_added_only_on_request(services: InnerServices) -> None:
    own = rule("exit_loop", "memory_insert")
    assert list((await services.make_agent(tool_rules=[own])).tool_rules) == [own]
    assert list((await services.make_agent(include_base_tool_rules=False)).tool_rules) == []
    asked = await services.make_agent(
        tool_rules=[own], include_base_tool_rules=True, tools=["memory_finish_edits"]
    )
    kinds = {(tool_rule.type, tool_rule.tool_name) for tool_rule in asked.tool_rules}
    assert asked.tool_rules[0] == own
    assert (tool.TOOL_RULE_TYPE_EXIT_LOOP, "memory_finish_edits") in kinds
    assert (tool.TOOL_RULE_TYPE_CONTINUE_LOOP, "conversation_search") in kinds
    assert len(asked.tool_rules) == len(asked.tools)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (rule("run_first", "gone"), "tool_rules[0].tool_name"),
        (rule("constrain_child_tools", "memory_insert"), "tool_rules[0].children"),
        (
            rule("constrain_child_tools", "memory_insert", children=["gone"]),
            "tool_rules[0].children[0]",
        ),
        (rule("max_count_per_step", "memory_insert"), "tool_rules[0].max_count_limit"),
        (rule("conditional", "memory_insert"), "tool_rules[0].child_output_mapping"),
        (
            rule(
                "run_first",
                "memory_insert",
                prefilled_arguments_json={"memory_insert": '{"nope": 1}'},
            ),
            "tool_rules[0].prefilled_arguments_json['memory_insert']",
        ),
        (
            rule(
                "parent_last_tool",
                "memory_insert",
                children=["memory_insert", "memory_replace"],
            ),
            "tool_rules",
        ),
    ],
)
async def test_wrong_rules_are_refused_at_creation_and_change(
    services: InnerServices, wrong: tool.ToolRule, field: str
) -> None:
    few: dict[str, Any] = {
        "include_base_tools": False,
        "tools": ["memory_insert", "memory_replace"],
    }
    with pytest.raises(InvalidArgumentError) as raised:
        await services.make_agent(tool_rules=[wrong], **few)
    assert [violation.field for violation in raised.value.violations] == [field]
    assert list((await services.agents.ListAgents(pb.ListAgentsRequest())).agents) == []

    agent = await services.make_agent(**few)
    request = pb.UpdateAgentRequest(agent_id=agent.id, set_tool_rules=True, tool_rules=[wrong])
    with pytest.raises(InvalidArgumentError) as raised:
        await services.agents.UpdateAgent(request)
    assert [violation.field for violation in raised.value.violations] == [field]
    got = await services.agents.GetAgent(pb.GetAgentRequest(agent_id=agent.id))
    assert (list(got.agent.tool_rules), got.agent.revision) == ([], 1)


async def test_a_tool_named_by_a_rule_cannot_be_removed_without_the_rule(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(tool_rules=[rule("run_first", "memory_insert")])
    names = pb.NameList(names=["conversation_search"])
    with pytest.raises(InvalidArgumentError) as raised:
        await services.agents.UpdateAgent(pb.UpdateAgentRequest(agent_id=agent.id, tools=names))
    assert [violation.field for violation in raised.value.violations] == ["tool_rules[0].tool_name"]
    both = pb.UpdateAgentRequest(agent_id=agent.id, tools=names, set_tool_rules=True)
    assert list((await services.agents.UpdateAgent(both)).agent.tools) == ["conversation_search"]


async def test_tool_rules_without_set_tool_rules_are_refused(services: InnerServices) -> None:
    agent = await services.make_agent()
    request = pb.UpdateAgentRequest(agent_id=agent.id, tool_rules=[rule("exit_loop", "memory")])
    with pytest.raises(InvalidArgumentError) as raised:
        await services.agents.UpdateAgent(request)
    assert [violation.field for violation in raised.value.violations] == ["set_tool_rules"]


async def test_rules_count_in_the_prompt_budget(services: InnerServices) -> None:
    model = {"handle": "test/test-model", "context_window": 4096}
    agent = await services.make_agent(model=model, system="x")
    many = [rule("continue_loop", name) for name in agent.tools] * 30
    with pytest.raises(FailedPreconditionError) as raised:
        await services.make_agent(model=model, system="x", tool_rules=many)
    assert raised.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED
    request = pb.UpdateAgentRequest(agent_id=agent.id, set_tool_rules=True, tool_rules=many)
    with pytest.raises(FailedPreconditionError) as raised:
        await services.agents.UpdateAgent(request)
    assert raised.value.reason is Reason.CONTEXT_WINDOW_EXCEEDED


@pytest.mark.parametrize("provider", ["test", "claude"])
async def test_both_providers_get_allowed_and_forced_tools(
    services: InnerServices, provider: str
) -> None:
    agent = await services.make_agent(
        model={"handle": f"{provider}/test-model", "parallel_tool_calls": True},
        tool_rules=[
            rule("run_first", "conversation_search"),
            rule(
                "constrain_child_tools",
                "conversation_search",
                children=["memory_insert", "memory_replace"],
            ),
            rule("max_count_per_step", "memory_insert", max_count_limit=1),
        ],
    )
    services.model.script(Reply(calls=(SEARCH,)), Reply(calls=(insert("Ada"),)), say("Done."))
    ran = await services.run(agent, "Hello.")
    assert ran.finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN

    bodies = [request.body for request in services.model.requests]
    names = [[tool.get("function", tool)["name"] for tool in body["tools"]] for body in bodies]
    assert names[0] == ["conversation_search"]
    assert names[1] == ["memory_insert", "memory_replace"]
    assert names[2] == [name for name in agent.tools if name != "memory_insert"]
    if provider == "claude":
        alone = {"disable_parallel_tool_use": True}
        assert [body["tool_choice"] for body in bodies] == [
            {"type": "tool", "name": "conversation_search", **alone},
            {"type": "any", **alone},
            {"type": "auto", **alone},
        ]
    else:
        forced = {"type": "function", "function": {"name": "conversation_search"}}
        assert [body["tool_choice"] for body in bodies] == [forced, "required", "auto"]
        assert {body["parallel_tool_calls"] for body in bodies} == {False}


async def test_rules_are_applied_to_the_calls_of_one_reply_in_order(
    services: InnerServices,
) -> None:
    agent = await services.make_agent(
        tool_rules=[
            rule("constrain_child_tools", "memory_insert", children=["memory_replace"]),
            rule(
                "constrain_child_tools",
                "memory_replace",
                children=["memory_insert"],
                prefilled_arguments_json={"memory_insert": '{"label": "persona"}'},
            ),
        ],
    )
    calls = (insert("Ada"), insert("Bob"), replace("Ada", "Eve"), insert("Cy"))
    services.model.script(Reply(calls=calls), say("Done."))
    ran = await services.run(agent, "Hello.")

    assistant, returns, _ = ran.messages
    statuses = [status for status, _ in returned_messages(returns)]
    assert statuses == ["OK", "Failed", "OK", "OK"]
    assert returned_messages(returns)[1][1] == (
        "[ToolConstraintError] Cannot call memory_insert, valid tools include:"
        " ['memory_replace'].\n** Hint: Possible rules that were violated:\n"
        "\t- <tool_rule>\nAfter using memory_insert, you must use one of these tools:"
        " memory_replace\n</tool_rule>"
    )
    system = (await services.window(agent)).messages[0].parts[0].text.text
    assert "Eve" in system
    assert "Bob" not in system
    last = json.loads(assistant.parts[-1].tool_call.arguments)
    assert (last["label"], last["new_str"]) == ("persona", "Cy")
    blocks = system[: system.index("<tool_usage_rules>")]
    assert blocks.index("<persona>") < blocks.index("Cy") < blocks.index("</persona>")


async def test_turn_continues_until_the_required_tool_was_called(services: InnerServices) -> None:
    agent = await services.make_agent(tool_rules=[rule("required_before_exit", "memory_insert")])
    services.model.script(say("Bye."), Reply(calls=(insert("Ada"),)), say("Bye."), say("Hi."))
    ran = await services.run(agent, "I am Ada.")

    assert ran.finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    assert roles(ran.messages) == ["assistant", "assistant", "tool", "assistant"]
    window = (await services.window(agent)).messages
    shown = ["system", "user", "assistant", "user", "assistant", "tool", "assistant"]
    assert roles(window) == shown
    assert list(window[3].provenance) == [message_pb2.PROVENANCE_SYSTEM]
    body = json.loads(window[3].parts[0].text.text)
    assert body["reason"].endswith(
        "ToolRuleViolated: You must call memory_insert at least once to exit the loop."
    )
    assert (
        services.model.requests[1].body["messages"][-1]["content"] == window[3].parts[0].text.text
    )


async def test_prefilled_arguments_override_those_of_the_model(services: InnerServices) -> None:
    agent = await services.make_agent(
        tool_rules=[
            rule(
                "run_first",
                "memory_insert",
                prefilled_arguments_json={"memory_insert": '{"label": "human"}'},
            )
        ]
    )
    services.model.script(
        Reply(calls=(Call("memory_insert", {"label": "x", "new_str": "Ada"}),)), say("k")
    )
    ran = await services.run(agent, "I am Ada.")
    assert returned_messages(ran.messages[1])[0][0] == "OK"
    assert "Ada" in (await services.window(agent)).messages[0].parts[0].text.text


@pytest.mark.parametrize("structured", [False, True])
async def test_required_tool_is_forced_in_the_request(
    services: InnerServices, structured: bool
) -> None:
    model = pb.ModelConfig(handle="test/test-model", structured_tools=structured)
    rules = [rule("required_before_exit", "conversation_search")]
    agent = await services.make_agent(tool_rules=rules, model=model)
    if structured:
        bye = say('{"tool": "say", "arguments": {"message": "Bye."}}')
        search = say('{"tool": "conversation_search", "arguments": {"query": "x"}}')
        services.model.script(bye, search, bye)
    else:
        services.model.script(say("Bye."), Reply(calls=[SEARCH]), say("Bye."))

    ran = await services.run(agent, "Hi.")

    assert ran.finished.stop_reason == run_event_pb2.STOP_REASON_END_TURN
    forced = services.model.requests[1].body
    if structured:
        options = forced["response_format"]["json_schema"]["schema"]["anyOf"]
        names = [option["properties"]["tool"]["const"] for option in options]
        assert names == ["conversation_search"]
    else:
        assert forced["tool_choice"]["function"]["name"] == "conversation_search"
