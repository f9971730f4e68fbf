"""The text of an A2A task during its run, and the URL in its card."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from reply_events import delta, restarted, snapshot, step, stored
from strata.api.common.v1 import run_event_pb2 as pb
from strata.gateway.http.a2a.application import base_url_of
from strata.gateway.http.a2a.replies import Appended, Change, Replaced, RunReply


@pytest.mark.parametrize(
    ("events", "changes"),
    [
        (
            [step("a"), delta("a", "One"), delta("a", "."), stored("a", "One.")],
            [Appended("One"), Appended(".")],
        ),
        (
            [step("a"), stored("a", "One."), step("b"), delta("b", "Two")],
            [Appended("One."), Appended("\n\nTwo")],
        ),
        ([step("a"), stored("a", ""), step("b"), delta("b", "Two")], [Appended("Two")]),
        (
            [step("a"), delta("a", "One"), snapshot("a", "One, two")],
            [Appended("One"), Appended(", two")],
        ),
        (
            [step("a"), delta("a", "On"), restarted("a"), step("a"), delta("a", "Two")],
            [Appended("On"), Replaced(""), Appended("Two")],
        ),
        (
            [step("a"), stored("a", "One."), step("b"), delta("b", "T"), restarted("b")],
            [Appended("One."), Appended("\n\nT"), Replaced("One.")],
        ),
        # The second reply is repeated before any of its text has come.
        (
            [step("a"), stored("a", "One."), step("b"), restarted("b"), delta("b", "Two")],
            [Appended("One."), Appended("\n\nTwo")],
        ),
        # The previous run has sent the reply that asked for an approval.
        ([stored("a", "One."), step("b"), stored("b", "Two.")], [Appended("Two.")]),
    ],
)
def test_the_text_follows_the_events_of_the_run(
    events: list[pb.RunEvent], changes: list[Change]
) -> None:
    reply = RunReply()
    text = ""
    seen = []
    for event in events:
        change = reply.apply(event)
        if change is not None:
            seen.append(change)
            text = change.text if isinstance(change, Replaced) else text + change.text
            assert reply.text == text
    assert seen == changes


@pytest.mark.parametrize(
    ("public_url", "base_url"),
    [
        ("", "http://strata.internal:7680"),
        ("https://strata.example", "https://strata.example"),
        ("https://strata.example/agents/", "https://strata.example/agents"),
    ],
)
def test_the_card_has_the_configured_or_requested_url(public_url: str, base_url: str) -> None:
    scope = {
        "type": "http",
        "scheme": "http",
        "path": "/a2a/assistant",
        "query_string": b"",
        "headers": [(b"host", b"strata.internal:7680")],
    }
    assert base_url_of(Request(scope), public_url) == base_url
