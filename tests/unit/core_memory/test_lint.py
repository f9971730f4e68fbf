"""The rules of the linter: what they report and what they accept."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core_memory.domain.blocks import Block
from strata.core_memory.domain.lint import MOST_FINDINGS, Finding, LintRule, lint

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def block(value: str, label: str = "human", limit: int = 20_000) -> Block:
    return Block(f"block-{label}", label, value, "About.", limit, False, 1, NOW, NOW)


def findings_of(*blocks: Block) -> list[tuple[LintRule, str, int]]:
    return [(finding.rule, finding.label, finding.line) for finding in lint(blocks)]


def rules(text: str) -> list[LintRule]:
    return [finding.rule for finding in lint([block(text)])]


def only(*blocks: Block) -> Finding:
    (finding,) = lint(blocks)
    return finding


def test_a_tidy_memory_has_no_findings() -> None:
    human = block(
        "# Sam\nName: Sam\nLives in Berlin.\n- likes tea\n- likes coffee\n\n"
        "Birthday: 1990-05-01\nSam is a doctor.\nSam is tall.\nSam is from Kiel."
    )
    persona = block("Name: Ada\nI am kind.\nI like jazz.", "persona")
    assert lint([human, persona, block("", "notes")]) == []


def test_the_same_line_twice_is_a_duplicate_in_one_block_and_in_two() -> None:
    first = block("Likes green tea.\nother line\n* likes  green tea")
    second = block("1. Likes green tea!", "notes")
    assert findings_of(first, second) == [
        (LintRule.DUPLICATE, "human", 3),
        (LintRule.DUPLICATE, "notes", 1),
    ]
    finding = lint([first, second])[1]
    assert (finding.other_label, finding.other_line) == ("human", 1)
    assert finding.message == ("The same text is in line 1 of block 'human'. Keep it in one place.")


@pytest.mark.parametrize(
    "text",
    [
        "## Notes\na\n## Notes\nb",
        "Preferences:\n- x\nPreferences:\n- y",
        "---------\na\n---------\nb",
        "yes\nyes",
        "```\nprint('hello world')\nprint('hello world')\n```",
        "\n\n\n",
    ],
)
def test_headings_rulers_code_and_short_words_may_occur_twice(text: str) -> None:
    assert rules(text) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Has an exam tomorrow", "tomorrow"),
        ("TODAY we talked about tea", "TODAY"),
        ("Was ill yesterday.", "yesterday"),
        ("Is looking for a job now.", "now"),
        ("Moves next month", "next month"),
        ("Moved last year", "last year"),
        ("Call her next Friday", "next Friday"),
        ("We met last Monday", "last Monday"),
        ("Felt bad this morning", "this morning"),
        ("Started two weeks ago", "two weeks ago"),
        ("Will be back in 3 days.", "in 3 days"),
        ("Dinner tonight", "tonight"),
    ],
)
def test_relative_dates_are_found(text: str, word: str) -> None:
    finding = only(block(f"ok\n{text}"))
    assert (finding.rule, finding.line, finding.text) == (LintRule.RELATIVE_DATE, 2, text)
    assert finding.message.startswith(f'"{word}" means another time')


@pytest.mark.parametrize(
    "text",
    [
        "Knows the snow and the known",
        "Reads USA Today",
        "Every now and then she swims",
        "From now on, answer in French",
        "Up to now nobody asked",
        "Greet with today's date",
        "Took the last week of March off",
        "His last year at school was hard",
        "Has a test every next Monday",
        "Moved last year (2025)",
        "Exam tomorrow, 2026-11-22",
        "Said on 3 May that tomorrow suits her",
        "The next step is tea",
        "Lives next door; last name Smith",
        "Works on Monday",
        "Friday is her day off",
    ],
)
def test_words_that_resemble_relative_dates_are_not_reported(text: str) -> None:
    assert rules(text) == []


@pytest.mark.parametrize(
    "text",
    ["City: Berlin\nCity: Paris", "Sam likes tea\nSam does not like tea", "Sam is 30\nSam is 31"],
)
def test_contradictions_are_not_reported(text: str) -> None:
    assert rules(text) == []


def test_long_lines_are_found_and_shown_shortened() -> None:
    finding = only(block("x" * 501))
    assert finding.rule is LintRule.LONG_LINE
    assert finding.text == "x" * 200 + "..."
    assert "501 characters" in finding.message
    assert rules("x" * 500) == []


def test_nearly_full_blocks_are_found_before_their_lines() -> None:
    full = block("today\n" + "x" * 84, limit=100)
    assert findings_of(full) == [
        (LintRule.NEARLY_FULL, "human", 0),
        (LintRule.RELATIVE_DATE, "human", 1),
    ]
    assert "90% of 100 characters" in lint([full])[0].message
    assert findings_of(replace(full, limit=101)) == [(LintRule.RELATIVE_DATE, "human", 1)]


def test_findings_are_ordered_and_limited() -> None:
    many = block("today\n" * 2_000)
    findings = lint([many])
    assert len(findings) == MOST_FINDINGS
    assert [finding.line for finding in findings] == sorted(finding.line for finding in findings)


@given(st.lists(st.text(max_size=80), max_size=5).map("\n".join))
def test_any_text_can_be_linted(text: str) -> None:
    lines = text.split("\n")
    for finding in lint([block(text)]):
        assert finding.line == 0 or finding.text == lines[finding.line - 1]
        assert finding.message.endswith(".")


def test_hostile_texts_take_linear_time() -> None:
    # Quadratic behaviour would exceed the timeout of the test session.
    states = "\n".join(f"Sam is {number} x" + "y" * number for number in range(1_000)) * 2
    for text in (" " * 900_000, "a is " * 180_000, "in one " * 128_000, "x\n" * 100_000, states):
        lint([block(text, limit=1_000_000)])
