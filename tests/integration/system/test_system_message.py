"""The system message, byte for byte, as it is stored and sent.

The base prompt comes from its module; the text after it is written out here by hand.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from chat_messages import roles
from doubles.script import Call, Reply, call, say
from strata.agent_loop.prompts.base import base_prompt
from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.shared.agent_types import AgentType
from whole_system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

BASE = base_prompt(AgentType.LETTA_V1)

FRESH = """\


<memory_blocks>
The following memory blocks are currently engaged in your core memory unit:

<human>
<description>
What you know about the person you are talking with: name, circumstances, tastes, plans. Keep it \
up to date, so that you treat them as someone you know.
</description>
<metadata>
- chars_current=0
- chars_limit=20000
</metadata>
<value>

</value>
</human>

<persona>
<description>
Who you are: your character, your manner of speaking, what you care about. It guides how you act \
and answer, and it may grow with experience.
</description>
<metadata>
- chars_current=0
- chars_limit=20000
</metadata>
<value>

</value>
</persona>

</memory_blocks>

<memory_metadata>
- The current system date is: {date}
- Memory blocks were last modified: {modified}
- 0 previous messages between you and the user are stored in recall memory (use tools to access \
them)
</memory_metadata>"""

EDITED = """\


<memory_blocks>
The following memory blocks are currently engaged in your core memory unit:

<policy>
<description>
What is never to be done.
</description>
<metadata>
- read_only=true
- chars_current=10
- chars_limit=100
</metadata>
<value>
Be honest.
</value>
</policy>

<human>
<description>
Whom I talk to.
</description>
<metadata>
- chars_current=17
- chars_limit=5000
</metadata>
<value>
Ada
Likes rowing.
</value>
</human>

</memory_blocks>

<memory_metadata>
- The current system date is: {date}
- Memory blocks were last modified: {modified}
- 0 previous messages between you and the user are stored in recall memory (use tools to access \
them)
</memory_metadata>"""

NUMBERED = """\


<memory_blocks>
The following memory blocks are currently engaged in your core memory unit:

<policy>
<description>
What is never to be done.
</description>
<metadata>
- read_only=true
- chars_current=10
- chars_limit=100
</metadata>
<warning>
# NOTE: Line numbers shown below (with arrows like '1→') are to help during editing. Do NOT \
include line number prefixes in your memory edit tool calls.
</warning>
<value>
1→ Be honest.
</value>
</policy>

<human>
<description>
Whom I talk to.
</description>
<metadata>
- chars_current=17
- chars_limit=5000
</metadata>
<warning>
# NOTE: Line numbers shown below (with arrows like '1→') are to help during editing. Do NOT \
include line number prefixes in your memory edit tool calls.
</warning>
<value>
1→ Ada
2→ Likes rowing.
</value>
</human>

</memory_blocks>

<memory_metadata>
- The current system date is: {date}
- Memory blocks were last modified: {modified}
- 0 previous messages between you and the user are stored in recall memory (use tools to access \
them)
- 2 total memories you created are stored in archival memory (use tools to access them)
- Available archival memory tags: sea, boat
</memory_metadata>"""

BLOCKS = [
    block_pb.NewBlock(
        label="policy",
        value="Be honest.",
        description="What is never to be done.",
        limit=100,
        read_only=True,
    ),
    block_pb.NewBlock(label="human", value="Ada", description="Whom I talk to.", limit=5000),
]


async def expected(system: System, agent: agent_pb.Agent, template: str, *labels: str) -> set[str]:
    """The message with its two times filled in.

    The public interface returns when the blocks were changed. The date is that of the creation,
    which is between the last change and now: two days at midnight, else one.
    """
    zone = ZoneInfo(agent.timezone or "UTC")
    blocks = [await system.block(agent, label) for label in labels]
    modified = max(block.update_time.ToDatetime(tzinfo=UTC) for block in blocks)
    shown = modified.astimezone(zone).strftime("%Y-%m-%d %I:%M:%S %p %Z%z")
    dates = {moment.astimezone(zone).strftime("%B %d, %Y") for moment in (modified, _now())}
    return {BASE + template.format(date=date, modified=shown) for date in dates}


def _now() -> datetime:
    return datetime.now(UTC)


async def test_fresh_agent_has_the_specified_bytes(system: System) -> None:
    agent = await system.make_agent()

    stored = await system.system_message(agent)

    assert stored in await expected(system, agent, FRESH, "human", "persona")


@pytest.mark.parametrize("timezone", ["Asia/Tokyo", "America/St_Johns"])
async def test_times_are_in_the_timezone_of_the_agent(system: System, timezone: str) -> None:
    agent = await system.make_agent(timezone=timezone)

    stored = await system.system_message(agent)

    assert stored in await expected(system, agent, FRESH, "human", "persona")


async def test_model_receives_the_stored_messages(system: System) -> None:
    agent = await system.make_agent()
    system.model.script(say("Hello."), say("Hello again."))

    await system.send(agent, "Hi.")
    await system.send(agent, "Hi again.")

    stored = await system.system_message(agent)
    assert [request.system for request in system.model.requests] == [stored, stored]


async def test_block_edit_is_shown_at_the_next_step_and_stored(system: System) -> None:
    agent = await system.make_agent(blocks=BLOCKS)
    system.model.script(
        call("memory_insert", {"label": "human", "new_str": "Likes rowing."}), say("Noted.")
    )

    ran = await system.send(agent, "I like rowing.")

    assert roles(ran.messages) == ["assistant", "tool", "assistant"]
    stored = await system.system_message(agent)
    assert stored in await expected(system, agent, EDITED, "policy", "human")
    assert system.model.requests[1].system == stored


async def test_edit_by_a_person_is_shown_at_the_next_turn(system: System) -> None:
    agent = await system.make_agent(blocks=BLOCKS)
    block = await system.block(agent, "human")
    await system.blocks.UpdateBlock(
        block_pb.UpdateBlockRequest(
            block_id=block.id, value="Ada\nLikes rowing.", expected_revision=block.revision
        )
    )
    system.model.script(say("Hello."))

    await system.send(agent, "Hi.")

    stored = await system.system_message(agent)
    assert stored in await expected(system, agent, EDITED, "policy", "human")
    assert system.model.requests[0].system == stored


async def test_archival_counts_and_tags_are_shown_at_the_next_turn(system: System) -> None:
    agent = await system.make_agent("anthropic/test-model", blocks=BLOCKS)
    await system.blocks.UpdateBlock(
        block_pb.UpdateBlockRequest(
            block_id=(await system.block(agent, "human")).id, value="Ada\nLikes rowing."
        )
    )
    system.model.script(
        Reply(
            calls=(
                Call("archival_memory_insert", {"content": "Has a boat.", "tags": ["sea", "boat"]}),
                Call("archival_memory_insert", {"content": "Fears storms.", "tags": ["sea"]}),
            )
        ),
        say("Noted."),
        say("Indeed."),
    )

    await system.send(agent, "I have a boat, and I fear storms.")
    first, second = system.model.requests
    assert first.system == second.system, (
        "changed counts alone must not invalidate the provider's cache"
    )
    assert "archival memory tags" not in second.system
    await system.send(agent, "Really.")

    stored = await system.system_message(agent)
    assert stored in await expected(system, agent, NUMBERED, "policy", "human")
    assert system.model.requests[2].system == stored


async def test_a_change_of_the_metadata_alone_does_not_rebuild_the_message(system: System) -> None:
    agent = await system.make_agent()
    before = await system.system_message(agent)
    for number in range(4):
        system.model.script(say(f"Answer {number}."))
        await system.send(agent, f"Question {number}.")

    assert await system.system_message(agent) == before
