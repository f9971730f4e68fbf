"""The taint of a context, compared with a simple reference implementation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from security_examples import security_examples
from strata.agent_loop.domain.conversation.messages import Message, ToolReturn
from strata.agent_loop.domain.conversation.taint import sources_of, taint_of_messages
from strata.agent_loop.domain.conversation.taint_sources import TaintSource
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import UNTRUSTED, Provenance, taint_of

LABELS = st.sampled_from(list(Provenance))
RETURNS = st.builds(
    ToolReturn,
    st.sampled_from(["c1", "c2", "c3"]),
    st.sampled_from(["fetch", "search"]),
    st.just(ToolStatus.OK),
    st.just(""),
    provenance=st.none() | LABELS,
    taint=st.lists(st.sampled_from(UNTRUSTED), max_size=2).map(tuple),
)
MESSAGES = st.lists(
    st.builds(
        Message,
        id=st.integers(0, 99).map(str),
        role=st.sampled_from(list(MessageRole)),
        parts=st.lists(RETURNS, max_size=2).map(tuple),
        provenance=st.lists(LABELS, max_size=3).map(tuple),
    ),
    max_size=8,
)
BLOCKS = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.sampled_from(UNTRUSTED), max_size=2).map(tuple)
)


def slowly(messages: list[Message]) -> set[Provenance]:
    """Returns every untrusted label in the messages; a slow reference."""
    untrusted = set()
    for message in messages:
        everything = list(message.provenance)
        for part in message.tool_returns:
            everything += [label for label in (part.provenance, *part.taint) if label is not None]
        untrusted |= {label for label in everything if label.value in ("web", "mcp")}
    return untrusted


@security_examples
@given(MESSAGES)
def test_the_taint_is_the_set_of_untrusted_labels(messages: list[Message]) -> None:
    taint = taint_of_messages(messages)
    assert set(taint) == slowly(messages)
    assert taint == taint_of(taint)
    assert taint == taint_of_messages(list(reversed(messages)))


@security_examples
@given(MESSAGES, MESSAGES)
def test_adding_messages_never_reduces_the_taint(one: list[Message], more: list[Message]) -> None:
    assert set(taint_of_messages(one)) <= set(taint_of_messages([*one, *more]))


@security_examples
@given(MESSAGES, BLOCKS, BLOCKS, st.integers(2, 6))
def test_every_label_has_a_source(
    messages: list[Message],
    blocks: dict[str, tuple[Provenance, ...]],
    tags: dict[str, tuple[Provenance, ...]],
    most: int,
) -> None:
    sources = sources_of(messages, blocks, tags, most)
    assert len(sources) <= most
    assert {source.label for source in sources} == slowly(messages) | set(
        taint_of(*blocks.values(), *tags.values())
    )
    by_id = {message.id for message in messages}
    for source in sources:
        if source.block_label:
            assert source.label in blocks[source.block_label]
        elif source.archival_tag:
            assert source.label in tags[source.archival_tag]
        else:
            assert source.message_id in by_id


def test_sources_are_listed_newest_first_and_replies_only_without_others() -> None:
    def returned(number: str) -> Message:
        part = ToolReturn(f"c{number}", "fetch", ToolStatus.OK, "", provenance=Provenance.WEB)
        return Message(number, MessageRole.TOOL, (part,), provenance=(Provenance.WEB,))

    reply = Message("3", MessageRole.ASSISTANT, (), provenance=(Provenance.MODEL, Provenance.WEB))
    web, mcp = Provenance.WEB, Provenance.MCP
    sources = sources_of(
        [returned("1"), returned("2"), reply], {"human": (mcp,)}, {"trips": (web, mcp)}
    )
    assert sources == (
        TaintSource(web, "2", "fetch", "c2"),
        TaintSource(web, "1", "fetch", "c1"),
        TaintSource(mcp, block_label="human"),
        TaintSource(web, archival_tag="trips"),
        TaintSource(mcp, archival_tag="trips"),
    )
    assert sources_of([reply], {}, {}) == (TaintSource(web, "3"),)


def test_labelled_input_message_is_a_source_too() -> None:
    web = Provenance.WEB
    part = ToolReturn("c1", "fetch", ToolStatus.OK, "", provenance=web)
    fetched = Message("1", MessageRole.TOOL, (part,))
    sent = Message("2", MessageRole.USER, (), provenance=(Provenance.USER, web))
    assert sources_of([fetched, sent], {}, {}) == (
        TaintSource(web, "2"),
        TaintSource(web, "1", "fetch", "c1"),
    )
