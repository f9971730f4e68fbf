"""Excerpts of conversations around found messages, and the budget that they keep."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.context.packaging import return_limit
from strata.agent_loop.context.token_budget import LEAST_SEARCH_BYTES
from strata.agent_loop.convert.agent_options import MIN_CONTEXT_WINDOW
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import search_pb2 as search_pb
from strata.api.recall.v1 import message_service_pb2 as pb
from strata.shared.search.time_expressions import zone_of
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT, pack
from strata.tool_execution.builtin import summaries
from strata.tool_execution.builtin.excerpts import Excerpt, excerpts_of, show
from strata.tool_execution.builtin.retrieval import message_result, neighbour_result, passage_result


def message(sequence: int, text: str = "", talk: str = "talk") -> common.Message:
    part = common.Part(text=common.TextPart(text=text or f"line {sequence}"))
    return common.Message(
        id=f"{talk}-{sequence}", conversation_id=talk, sequence=sequence, parts=[part]
    )


def hit(sequence: int, text: str = "", talk: str = "talk") -> pb.MessageHit:
    around = [message(sequence - 1, talk=talk), message(sequence + 1, talk=talk)]
    return pb.MessageHit(message=message(sequence, text, talk), neighbours=around)


def content(item: common.Message) -> dict[str, Any]:
    return {"id": item.id, "content": item.parts[0].text.text}


def shown(hits: list[pb.MessageHit], most_bytes: int = 0) -> list[dict[str, Any]]:
    results, _ = show(
        excerpts_of(hits),
        lambda one: content(one.message),
        content,
        matches=[one.message.id for one in hits],
        most_bytes=most_bytes,
    )
    return results


def ids(excerpt: Excerpt) -> tuple[list[str], str, list[str]]:
    before = [item.id for item in excerpt.before]
    return before, excerpt.hit.message.id, [item.id for item in excerpt.after]


def test_a_hit_is_shown_between_its_neighbours() -> None:
    (result,) = shown([hit(5)])
    assert [item["id"] for item in result["before"]] == ["talk-4"]
    assert result["id"] == "talk-5"
    assert [item["id"] for item in result["after"]] == ["talk-6"]


def test_hits_with_common_neighbours_become_one_excerpt_around_the_best() -> None:
    (excerpt,) = excerpts_of([hit(7), hit(5)])
    assert ids(excerpt) == (["talk-4", "talk-5", "talk-6"], "talk-7", ["talk-8"])


def test_a_hit_between_two_excerpts_joins_them() -> None:
    excerpts = excerpts_of([hit(3), hit(7), hit(5), hit(20)])
    assert [ids(excerpt)[1] for excerpt in excerpts] == ["talk-3", "talk-20"]
    assert ids(excerpts[0])[2] == ["talk-4", "talk-5", "talk-6", "talk-7", "talk-8"]


def test_hits_of_different_conversations_are_separate_excerpts() -> None:
    assert len(excerpts_of([hit(5), hit(5, talk="other")])) == 2


def test_a_long_neighbour_is_cut_and_a_hit_is_not() -> None:
    long = "word " * 200
    neighbour = pb.MessageHit(message=message(5, long), neighbours=[message(4, long)])
    (result,) = shown([neighbour])
    assert result["content"] == long
    assert result["before"][0]["content"].endswith(" [...]")
    assert len(result["before"][0]["content"]) <= 310


def test_a_second_hit_beside_the_best_is_not_cut_as_a_neighbour() -> None:
    long = "word " * 200
    (result,) = shown([hit(5), hit(6, long)])
    assert result["after"][0]["content"] == long


def test_hits_precede_neighbours_when_the_budget_is_short() -> None:
    hits = [hit(number * 10, "x" * 100) for number in range(1, 6)]
    results = shown(hits, most_bytes=1_300)
    assert [result["id"] for result in results] == [f"talk-{n}0" for n in range(1, 6)]
    assert all(result["content"] == "x" * 100 for result in results)
    assert [item["id"] for item in results[0]["before"]] == ["talk-9"]
    assert all("before" not in result for result in results[2:])


def test_a_second_hit_of_an_excerpt_precedes_neighbours_when_the_budget_is_short() -> None:
    hits = [hit(5, "x" * 100), hit(40, "x" * 100), hit(6, "y" * 100)]
    results = shown(hits, most_bytes=650)
    assert [result["id"] for result in results] == ["talk-5", "talk-40"]
    assert [item["content"] for item in results[0]["after"]] == ["y" * 100]
    assert "before" not in results[0]


def test_the_neighbour_next_to_the_hit_comes_first_when_the_budget_is_short() -> None:
    far = pb.MessageHit(message=message(5), neighbours=[message(number) for number in (3, 4, 6, 7)])
    (result,) = shown([far], most_bytes=420)
    assert [item["id"] for item in result["before"]] == ["talk-4"]
    assert [item["id"] for item in result["after"]] == ["talk-6"]


def test_a_very_long_hit_leaves_space_for_others_and_their_neighbours() -> None:
    results = shown([hit(5, "y" * 200_000), *(hit(number * 10) for number in range(1, 5))])
    assert [result["id"] for result in results] == ["talk-5", *(f"talk-{n}0" for n in range(1, 5))]
    assert results[0]["content"].endswith("y [...]")
    assert len(results[0]["content"]) > 9_000
    assert all({"before", "after"} <= result.keys() for result in results)


def test_long_hits_share_the_budget() -> None:
    results = shown([hit(number * 10, "y" * 200_000) for number in range(1, 6)])
    assert len(results) == 5
    assert all(len(result["content"]) > 3_000 for result in results)


@pytest.mark.parametrize("most_bytes", [0, 10_000_000])
@pytest.mark.parametrize("text", ["y" * 200_000, '"\n' * 100_000, "\u7ae0\u9c7c" * 100_000])
def test_results_within_the_budget_are_never_truncated_as_text(text: str, most_bytes: int) -> None:
    hits = [hit(number * 10, text) for number in range(1, 101)]
    value = {"message": "Showing 100 results:", "results": shown(hits, most_bytes)}
    _, truncated = pack("OK", value, datetime.now(UTC), FUNCTION_RETURN_CHAR_LIMIT)
    assert not truncated


@pytest.mark.parametrize("text", ["short", "a rather long reply " * 500, '"\n' * 5_000])
def test_a_return_is_shown_whole_in_the_smallest_window(text: str) -> None:
    now, zone = datetime.now(UTC), zone_of("Europe/Berlin")
    reasoning = common.Part(reasoning=common.ReasoningPart(text="thoughts " * 5_000))
    hits = [hit(number * 10, text) for number in range(1, 11)]
    for one in hits:
        one.message.role = common.ROLE_ASSISTANT
        one.message.parts.append(reasoning)
        one.relevance.CopyFrom(search_pb.Relevance(rrf_score=0.03, vector_rank=1, fts_rank=1))
    results, _ = show(
        excerpts_of(hits),
        lambda one: message_result(one, now, zone),
        lambda one: neighbour_result(one, zone),
        matches=[one.message.id for one in hits],
        most_bytes=LEAST_SEARCH_BYTES,
    )
    assert len(results) > 2
    value = {"message": f"Showing {len(results)} results:", "results": results}
    packed, _ = pack("OK", value, now, FUNCTION_RETURN_CHAR_LIMIT)
    assert len(packed) <= return_limit(MIN_CONTEXT_WINDOW)


def test_the_lowest_ranked_hits_are_omitted_when_there_are_too_many() -> None:
    hits = [hit(number * 10, "x" * 50) for number in range(1, 101)]
    results = shown(hits, most_bytes=4_000)
    assert [result["id"] for result in results] == [
        f"talk-{n}0" for n in range(1, len(results) + 1)
    ]
    assert 10 < len(results) < 100


def test_the_best_hit_is_shown_however_small_the_budget_is() -> None:
    (result,) = shown([hit(5, "y" * 500), hit(50, "z" * 500)], most_bytes=1)
    assert result["content"].startswith("yyy")
    assert result["content"].endswith(" [...]")


def test_messages_that_do_not_fit_are_not_counted_as_shown() -> None:
    _, messages = show(
        excerpts_of([hit(5, "y" * 500)]),
        lambda one: content(one.message),
        content,
        matches=["talk-5"],
        most_bytes=100,
    )
    assert [item.id for item in messages] == ["talk-5"]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.text(max_size=400)), min_size=1, max_size=8),
    st.integers(1, 3_000),
)
def test_every_message_is_shown_once_within_the_budget(
    rows: list[tuple[int, str]], most_bytes: int
) -> None:
    hits = list({sequence: hit(sequence, text) for sequence, text in rows}.values())
    results = shown(hits, most_bytes)
    items = [
        item
        for result in results
        for item in (*result.get("before", ()), result, *result.get("after", ()))
    ]
    names = [item["id"] for item in items]
    assert len(names) == len(set(names))
    packed, _ = pack("OK", {"message": "", "results": results}, datetime.now(UTC), 50_000)
    empty, _ = pack("OK", {"message": "", "results": [{}]}, datetime.now(UTC), 50_000)
    # The best hit is always shown, cut to the shortest useful length.
    best = content(hits[0].message)
    least = len(json.dumps(best | {"content": "x" * 80}).encode()) + 6 * 12
    assert len(packed.encode()) - len(empty.encode()) <= max(most_bytes, least)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (common.TOOL_STATUS_OK, "It rains."),
        (common.TOOL_STATUS_FAILED, "Failed: It rains."),
        (common.TOOL_STATUS_UNKNOWN, "Unknown: It rains."),
    ],
)
def test_a_return_of_a_tool_is_shown_without_its_package(
    status: common.ToolStatus.ValueType, text: str
) -> None:
    packed, _ = pack("any", "It rains.", datetime.now(UTC), 100)
    part = common.Part(tool_return=common.ToolReturnPart(status=status, content=packed))
    tool_message = common.Message(role=common.ROLE_TOOL, parts=[part])
    assert neighbour_result(tool_message, zone_of("UTC"))["content"] == text
    assert summaries._result(tool_message, zone_of("UTC"), 1_000)["content"] == text


def test_a_possibly_outdated_result_names_the_time_of_the_newer_one() -> None:
    now, zone = datetime(2026, 5, 1, tzinfo=UTC), zone_of("Europe/Berlin")
    outdated = pb.MessageHit(message=message(1))
    outdated.possibly_outdated.newer_id = "talk-9"
    outdated.possibly_outdated.newer_statement = "what someone else wrote"
    outdated.possibly_outdated.newer_time.FromDatetime(datetime(2026, 4, 2, 8, tzinfo=UTC))
    mark = "Compare with the newer result of 2026-04-02T10:00:00+02:00."
    assert message_result(outdated, now, zone)["possibly_outdated"] == mark
    assert "possibly_outdated" not in message_result(hit(1), now, zone)
    passage = passage_pb.PassageHit(possibly_outdated=outdated.possibly_outdated)
    result = passage_result(passage, zone)
    assert result["possibly_outdated"] == mark
    assert "someone else" not in json.dumps(result)
