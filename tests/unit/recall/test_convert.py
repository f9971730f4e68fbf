"""Messages are the same after conversion to the domain and back."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_samples import png
from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import search_pb2, usage_pb2
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.protocol.errors import InvalidArgumentError
from strata.protocol.images import image_id
from strata.recall.convert import messages as convert
from strata.recall.convert import search as convert_search
from strata.recall.domain.messages import Message
from strata.recall.domain.search import Mode
from strata.shared.convert.messages import ROLES
from strata.shared.ids import new_id
from strata.shared.messages import MessageRole
from strata.shared.search.outdated import Outdated
from strata.shared.search.reranking import RerankingOutcome, RerankingReport
from strata.shared.search.results import Exclusion, SearchHit, SearchResult
from strata.shared.search.time_expressions import TimeRange

NOW = datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))

STORED_IMAGE = st.builds(
    common.ImagePart,
    media_type=st.sampled_from(["image/png", "image/webp"]),
    source_url=TEXT,
    image_id=st.just("0f" * 32),
    width=st.integers(1, 8000),
    height=st.integers(1, 8000),
    size_bytes=st.integers(1, 4_000_000),
    alt_text=TEXT,
    detail=st.sampled_from(common.ImageDetail.values()),
)
CALL = st.builds(common.ToolCallPart, tool_call_id=TEXT, name=TEXT, arguments=TEXT)
PARTS = st.one_of(
    st.builds(lambda t: common.Part(text=common.TextPart(text=t)), TEXT),
    st.builds(lambda image: common.Part(image=image), STORED_IMAGE),
    st.builds(
        lambda t, s, r: common.Part(
            reasoning=common.ReasoningPart(text=t, signature=s, redacted=r)
        ),
        TEXT,
        TEXT,
        st.binary(),
    ),
    st.builds(lambda c: common.Part(tool_call=c), CALL),
    st.builds(
        lambda i, c, o, s, p, images: common.Part(
            tool_return=common.ToolReturnPart(
                tool_call_id=i,
                name="t",
                content=c,
                stdout=o,
                status=s,
                provenance=p,
                taint=[p],
                images=images,
                nested_calls=[
                    common.NestedToolCall(
                        tool_call_id=i, name=c, arguments=c, status=s, refused=bool(o)
                    )
                ],
                returned_by=c,
            )
        ),
        TEXT,
        TEXT,
        st.lists(TEXT),
        st.sampled_from(common.ToolStatus.values()),
        st.sampled_from(common.Provenance.values()),
        st.lists(STORED_IMAGE, max_size=2),
    ),
    st.builds(
        lambda i, calls: common.Part(
            approval_request=common.ApprovalRequestPart(
                approval_id=i,
                tool_calls=calls,
                waiting_calls=calls,
                bindings=[common.ApprovalBinding(tool_call_id=i, tool_version=i, arguments_hash=i)],
                taint=[
                    common.TaintSource(label=common.PROVENANCE_WEB, message_id=i, tool_name=i),
                    common.TaintSource(label=common.PROVENANCE_MCP, block_label=i),
                ],
            )
        ),
        TEXT,
        st.lists(CALL, max_size=3),
    ),
    st.builds(
        lambda i, a, c: common.Part(
            approval_response=common.ApprovalResponsePart(
                approval_id=i,
                decisions=[
                    common.ApprovalDecision(
                        tool_call_id=i, approve=a, reason="r", arguments_hash=i
                    ),
                    common.ApprovalDecision(
                        tool_call_id=i, client_return=c, client_status=common.TOOL_STATUS_FAILED
                    ),
                ],
                answered_by=i,
            )
        ),
        TEXT,
        st.booleans(),
        TEXT,
    ),
    st.builds(
        lambda t, n: common.Part(
            summary=common.SummaryPart(
                text=t,
                first_sequence=1,
                last_sequence=n,
                message_count=3,
                first_message_id="message-1",
                last_message_id="message-2",
            )
        ),
        TEXT,
        st.integers(0, 2**40),
    ),
)


@given(
    parts=st.lists(PARTS, max_size=6), role=st.sampled_from(list(MessageRole)), pinned=st.booleans()
)
def test_messages_are_unchanged_after_conversion_in_both_directions(
    parts: list[common.Part], role: MessageRole, pinned: bool
) -> None:
    wire = common.Message(
        id=new_id("message"),
        role=ROLES.to_proto[role],
        parts=parts,
        name="Ada",
        run_id="run-1",
        pinned=pinned,
        usage=usage_pb2.Usage(prompt_tokens=3, total_tokens=3, estimated=True),
        provenance=[common.PROVENANCE_WEB, common.PROVENANCE_UNSPECIFIED],
        sequence=-1,
    )
    wire.create_time.FromDatetime(NOW)
    message = convert.to_message(wire, NOW)
    json.dumps(message.parts)
    assert convert.message_to_proto(message) == wire


def test_nul_never_reaches_the_store() -> None:
    wire = common.Message(
        id=new_id("message"),
        role=common.ROLE_TOOL,
        parts=[
            common.Part(
                tool_return=common.ToolReturnPart(content="a\0b", stdout=["x\0"], tool_call_id="c")
            )
        ],
    )
    assert "\0" not in json.dumps(convert.to_message(wire, NOW).parts, ensure_ascii=False)


def step(**changes: Any) -> window_pb.CommitStepRequest:
    run = new_id("run")
    values = {
        "conversation_id": new_id("conversation"),
        "agent_id": new_id("agent"),
        "run_id": run,
        "attempt": 1,
        "step": 1,
        "messages": [common.Message(id=new_id("message"), role=common.ROLE_ASSISTANT, run_id=run)],
    }
    return window_pb.CommitStepRequest(**{**values, **changes})


def test_a_valid_step_is_accepted() -> None:
    converted = convert.to_step(step(system_text=""), NOW)
    assert converted.system_text == ""
    assert converted.messages[0].step == 1


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (step(attempt=0), "attempt"),
        (step(step=-1), "step"),
        (step(messages=[]), "messages"),
        (step(evict_count=-1), "evict_count"),
        (step(messages=[common.Message(id="x")]), "messages[0].role"),
        (step(run_id=new_id("run")), "messages[0].run_id"),
        (step(conversation_id="conversation-1"), "conversation_id"),
        (step(agent_id=new_id("run")), "agent_id"),
    ],
)
def test_wrong_steps_are_refused_by_field(
    request_: window_pb.CommitStepRequest, field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        convert.to_step(request_, NOW)
    assert field in [item.field for item in caught.value.violations]


def test_a_call_without_its_return_is_refused() -> None:
    run = new_id("run")
    call = common.Part(tool_call=common.ToolCallPart(tool_call_id="c1", name="t"))
    alone = common.Message(
        id=new_id("message"), role=common.ROLE_ASSISTANT, run_id=run, parts=[call]
    )
    with pytest.raises(InvalidArgumentError, match="calls without a return: c1"):
        convert.to_step(step(run_id=run, messages=[alone]), NOW)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"query": " "}, "query"),
        ({"query": "x" * 3_000}, "query"),
        ({"query": "x", "limit": -1}, "limit"),
        ({"query": "x", "neighbours": 9}, "neighbours"),
        ({"query": "x", "roles": [99]}, "roles[0]"),
        ({"query": "x", "mode": 99}, "mode"),
        ({"query": "x", "agent_id": "agent-1"}, "agent_id"),
    ],
)
def test_invalid_searches_are_refused_by_field(fields: dict[str, Any], wrong: str) -> None:
    request = message_pb.SearchMessagesRequest(**{"agent_id": new_id("agent"), **fields})
    with pytest.raises(InvalidArgumentError) as caught:
        convert_search.to_search(request)
    assert wrong in [item.field for item in caught.value.violations]


def test_a_list_needs_either_a_conversation_or_an_agent() -> None:
    for request in (
        message_pb.ListMessagesRequest(),
        message_pb.ListMessagesRequest(
            agent_id=new_id("agent"), conversation_id=new_id("conversation")
        ),
        message_pb.ListMessagesRequest(agent_id=new_id("agent"), from_message_id=new_id("message")),
        message_pb.ListMessagesRequest(
            conversation_id=new_id("conversation"), to_message_id="elsewhere"
        ),
    ):
        with pytest.raises(InvalidArgumentError):
            convert.to_filter(request)


@pytest.mark.parametrize(
    ("mode", "meant"),
    [
        (message_pb.SEARCH_MODE_UNSPECIFIED, Mode.HYBRID),
        (message_pb.SEARCH_MODE_HYBRID, Mode.HYBRID),
        (message_pb.SEARCH_MODE_SEMANTIC, Mode.SEMANTIC),
        (message_pb.SEARCH_MODE_FULL_TEXT, Mode.FULL_TEXT),
    ],
)
def test_every_search_mode_is_converted(mode: message_pb.SearchMode.ValueType, meant: Mode) -> None:
    request = message_pb.SearchMessagesRequest(agent_id=new_id("agent"), query="x", mode=mode)
    assert convert_search.to_search(request).mode is meant


def test_search_results_are_converted_without_unset_values() -> None:
    message = Message(new_id("message"), MessageRole.USER, (), NOW)
    spoken = TimeRange("since March", NOW, None)
    answer = SearchResult(
        (SearchHit(message, "vector", 0.5, 2, None),), (Exclusion("roles", 3, "m"),), (spoken,)
    )
    wire = convert_search.answer_to_proto(answer)
    [hit] = wire.hits
    assert (hit.relevance.search_mode, hit.relevance.vector_rank) == ("vector", 2)
    assert not hit.relevance.HasField("fts_rank")
    assert (wire.exclusions[0].condition, wire.exclusions[0].count) == ("roles", 3)
    assert wire.spoken_times[0].start_time.ToDatetime(tzinfo=UTC) == NOW
    assert not wire.spoken_times[0].HasField("end_time")


def test_a_possibly_outdated_message_names_the_newer_one() -> None:
    message = Message(new_id("message"), MessageRole.USER, (), NOW)
    outdated = Outdated("message-2", NOW.timestamp(), "I smoke.", "I no longer smoke.")
    hits = (
        SearchHit(message, "vector", 0.5, 2, None, outdated=outdated),
        SearchHit(message, "vector", 0.4, 3, None),
    )
    marked, other = convert_search.answer_to_proto(SearchResult(hits)).hits
    mark = marked.possibly_outdated
    assert (mark.newer_id, mark.newer_time.ToDatetime(tzinfo=UTC)) == ("message-2", NOW)
    assert (mark.statement, mark.newer_statement) == ("I smoke.", "I no longer smoke.")
    assert not other.HasField("possibly_outdated")


def test_search_results_have_the_outcome_of_the_reranker() -> None:
    assert not convert_search.answer_to_proto(SearchResult(())).HasField("reranking")
    message = Message(new_id("message"), MessageRole.USER, (), NOW)
    hits = (
        SearchHit(message, "vector", 0.5, 2, None, rerank_score=-3.5, rerank_rank=1),
        SearchHit(message, "vector", 0.4, 3, None),
    )
    outcomes = {
        RerankingOutcome.DONE: search_pb2.RERANK_OUTCOME_DONE,
        RerankingOutcome.OUT_OF_TIME: search_pb2.RERANK_OUTCOME_OUT_OF_TIME,
        RerankingOutcome.FAILED: search_pb2.RERANK_OUTCOME_FAILED,
    }
    for outcome in RerankingOutcome:
        answer = SearchResult(hits, reranking=RerankingReport("mini@1234", 12, outcome))
        wire = convert_search.answer_to_proto(answer)
        assert (wire.reranking.model, wire.reranking.candidate_count) == ("mini@1234", 12)
        assert wire.reranking.outcome == outcomes[outcome]
        first, second = (hit.relevance for hit in wire.hits)
        assert (first.rerank_score, first.rerank_rank, first.rrf_score) == (-3.5, 1, 0.5)
        assert not second.HasField("rerank_score")
        assert not second.HasField("rerank_rank")


@given(st.binary(max_size=3), TEXT, st.sampled_from(common.ImageDetail.values()))
def test_the_bytes_of_images_are_separated_from_their_message(
    salt: bytes, alt_text: str, detail: common.ImageDetail.ValueType
) -> None:
    """For parts of messages and of returns alike; the other fields are kept."""
    data = png(3, 2) + salt
    sent = common.ImagePart(data=data, alt_text=alt_text, detail=detail, width=99, image_id="x")
    wire = common.Message(
        id="message-1",
        role=common.ROLE_TOOL,
        parts=[
            common.Part(image=sent),
            common.Part(tool_return=common.ToolReturnPart(name="t", images=[sent])),
        ],
    )
    message = convert.to_message(wire, NOW)
    assert [image.data for image in message.images] == [data, data]
    assert message.image_ids() == (image_id(data),)
    assert base64.b64encode(data).decode() not in json.dumps(message.parts)
    stored = convert.message_to_proto(message).parts
    for image in (stored[0].image, stored[1].tool_return.images[0]):
        assert image.WhichOneof("source") is None
        assert (image.media_type, image.width, image.height) == ("image/png", 3, 2)
        assert (image.image_id, image.size_bytes) == (image_id(data), len(data))
        assert (image.alt_text, image.detail) == (alt_text, detail)


def test_an_invalid_image_is_refused_by_field() -> None:
    part = common.Part(image=common.ImagePart(data=b"GIF"))
    wires = [common.Message(id="message-1", role=common.ROLE_USER, parts=[part])]
    with pytest.raises(InvalidArgumentError) as raised:
        convert.to_messages(wires, "inputs", NOW)
    assert [violation.field for violation in raised.value.violations] == ["inputs[0].parts"]


def test_image_of_an_earlier_release_is_read() -> None:
    parts = (
        {"type": "image", "media_type": "image/png", "url": "https://a.example/b.png"},
        {"type": "image", "media_type": "image/png", "data": "AAEC"},
    )
    stored = convert.message_to_proto(Message("message-1", MessageRole.USER, parts, NOW)).parts
    assert stored[0].image.url == "https://a.example/b.png"
    assert stored[1].image.data == b"\0\1\2"
