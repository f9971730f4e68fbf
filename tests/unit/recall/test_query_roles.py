"""Detection of the role that a query asks about."""

from __future__ import annotations

import pytest

from strata.recall.domain.query_roles import query_role
from strata.shared.messages import MessageRole


@pytest.mark.parametrize(
    "query",
    [
        "When does my first sprint end?",
        "Have I ever been to Lisbon?",
        "where we parked",
        "the user's allergies",
        "Can you tell me when my sprint ends?",
        "I am planning a trip. What would you suggest?",
        "Have I told you where I live?",
        "could you please list what I\u2019ve bought",
    ],
)
def test_questions_about_the_user_prefer_user_messages(query: str) -> None:
    assert query_role(query) is MessageRole.USER


@pytest.mark.parametrize(
    "query",
    [
        "What did you recommend for my back pain?",
        "Can you tell me what you said about Rome?",
        "Where is your list of books?",
        "You've once described a cake to me",
        "Did you find me a dentist?",
        "answer of the assistant about tea",
    ],
)
def test_questions_about_given_advice_prefer_assistant_messages(query: str) -> None:
    assert query_role(query) is MessageRole.ASSISTANT


@pytest.mark.parametrize(
    "query",
    [
        "When did Caroline move to Paris?",
        "sprint deadline",
        "",
        "myth of the youth",
        "can you help?",
    ],
)
def test_questions_about_others_prefer_no_role(query: str) -> None:
    assert query_role(query) is None
