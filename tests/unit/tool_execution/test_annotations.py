"""Annotations of ``AgentState`` become text, and nothing else of a source changes."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.tool_execution.custom.annotations import deferred


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(agent_state: AgentState): ...\n", "def f(agent_state: 'AgentState'): ...\n"),
        ('def f(agent_state: "AgentState"): ...\n', 'def f(agent_state: "AgentState"): ...\n'),
        (
            "def f(é: int, s: AgentState | None) -> AgentState: ...\r\n",
            "def f(é: int, s: 'AgentState | None') -> 'AgentState': ...\r\n",
        ),
        (
            "from __future__ import annotations\ndef f(s: AgentState): ...\n",
            "from __future__ import annotations\ndef f(s: AgentState): ...\n",
        ),
        ("x = AgentState\ndef f(s: int): ...", "x = AgentState\ndef f(s: int): ..."),
    ],
)
def test_only_annotations_that_name_it_are_written_as_text(before: str, after: str) -> None:
    assert deferred(before) == after


@given(
    st.lists(st.sampled_from(["int", "AgentState", '"AgentState"', "(AgentState\n | None)"])),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["x", "ü", "\f"]),
)
def test_every_line_keeps_its_number(annotations: list[str], end: str, text: str) -> None:
    parameters = ", ".join(f"p{n}: {each}" for n, each in enumerate(annotations))
    source = f"# {text}\nTEXT = '{text}'\ndef f({parameters}) -> object:\n    return TEXT\n"
    source = source.replace("\n", end)
    found = deferred(source)
    module = ast.parse(found)
    assert [node.lineno for node in module.body] == [node.lineno for node in ast.parse(source).body]
    left = [
        node
        for function in ast.walk(module)
        if isinstance(function, ast.arg) and function.annotation is not None
        for node in ast.walk(function.annotation)
        if isinstance(node, ast.Name) and node.id == "AgentState"
    ]
    assert left == []
    assert deferred(found) == found
