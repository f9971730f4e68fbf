"""Requirements of tools: validation, and identity of environments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.tool_execution.packages.requirements import key_of, normal, package_of, problem_of

_NAMES = st.sampled_from(["requests", "Flask", "a_b", "zope.interface"])
_LINES = st.builds(
    "{}{}{}".format, _NAMES, st.sampled_from(["", "[x,y]"]), st.sampled_from(["", ">=1,<2", "==3"])
)


@pytest.mark.parametrize(
    "text", ["a", "a==1.2", "A.b>=1,<2", "a[x]~=1.0", 'a; python_version < "3.13"', "a!=1"]
)
def test_pinned_and_ranged_requirements_are_accepted(text: str) -> None:
    assert problem_of(text) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not a valid pip requirement"),
        ("-r /etc/passwd", "not a valid pip requirement"),
        ("--index-url=https://x.org", "not a valid pip requirement"),
        ("../folder", "not a valid pip requirement"),
        ("a\nb", "not a valid pip requirement"),
        ("a==1 \\", "not a valid pip requirement"),
        ("a===${UV_DEFAULT_INDEX}", "not a valid pip requirement"),
        ("a===1", "==="),
        ("a @ https://x.org/a.whl", "contains a URL"),
        ("a @ file:///etc", "contains a URL"),
        ("a" * 201, "not a valid pip requirement"),
    ],
)
def test_invalid_requirements_are_refused(text: str, problem: str) -> None:
    assert problem in problem_of(text)


@given(st.lists(_LINES, min_size=1, max_size=5), st.randoms())
def test_the_environment_does_not_depend_on_order_and_spelling(
    lines: list[str], random: object
) -> None:
    other = [line.upper() if "[" not in line else line for line in lines]
    random.shuffle(other)  # type: ignore[attr-defined]
    assert key_of(normal(lines)) == key_of(normal(other))
    assert normal(normal(lines)) == normal(lines)
    assert all(problem_of(line) == "" for line in normal(lines))


def test_other_versions_need_another_environment() -> None:
    keys = {
        key_of(normal(requirements))
        for requirements in (["a"], ["a>=1"], ["a>=1", "b"], ["b"], ["a[x]"])
    }
    assert len(keys) == 5


def test_one_package_has_one_name() -> None:
    assert package_of("A_b>1") == package_of("a-B") == "a-b"
    assert package_of("not a requirement !") == "not a requirement !"
