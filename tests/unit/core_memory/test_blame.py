"""Blame: which version wrote each line."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from strata.core_memory.domain.blocks import Authorship, Origin, Version
from strata.core_memory.domain.text_edits.three_way_merge import lines_of
from strata.core_memory.domain.versions.blame import Blame

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def version(revision: int, value: str) -> Version:
    return Version(
        block_id="block-1",
        revision=revision,
        label="human",
        value=value,
        description="",
        limit=20_000,
        read_only=False,
        metadata={},
        authorship=Authorship("append", Origin(run_id=f"run-{revision}"), "key-1", NOW),
    )


def chain(*values: str) -> list[Version]:
    """Returns versions, newest first, of values, oldest first."""
    return [version(number, value) for number, value in enumerate(values, start=1)][::-1]


def blamed(versions: list[Version], page: int = 1) -> list[tuple[str, int]]:
    blame = Blame()
    for start in range(0, len(versions), page):
        if blame.read(versions[start : start + page]):
            break
    return [(origin.text, origin.revision) for origin in blame.origins()]


def test_each_line_is_attributed_to_the_version_that_wrote_it() -> None:
    versions = chain("one\ntwo", "one\ntwo\nthree", "zero\none\nTWO\nthree", "zero\none\nTWO")
    assert blamed(versions) == [("zero", 3), ("one", 1), ("TWO", 3)]


def test_a_changed_line_is_attributed_to_its_last_writer() -> None:
    assert blamed(chain("a", "b", "a")) == [("a", 3)]


def test_equal_lines_are_distinguished_by_their_position() -> None:
    assert blamed(chain("x\ny", "x\ny\nx")) == [("x", 1), ("y", 1), ("x", 2)]


def test_empty_lines_are_attributed_and_an_empty_text_has_none() -> None:
    assert blamed(chain("", "a\n\nb")) == [("a", 2), ("", 2), ("b", 2)]
    assert blamed(chain("a", "")) == []


def test_versions_that_kept_the_text_have_no_lines() -> None:
    assert blamed(chain("a", "a", "a\nb", "a\nb")) == [("a", 1), ("b", 3)]


def test_blame_stops_when_every_line_has_its_version() -> None:
    blame = Blame()
    assert not blame.read(chain("x", "y")[:1])
    assert blame.read(chain("x", "y")[1:])


def test_in_a_text_of_very_many_lines_only_equal_ends_are_attributed() -> None:
    old = "\n".join(["head", *(f"old {number}" for number in range(1_000)), "tail"])
    new = "\n".join(["head", *(f"new {number}" for number in range(1_000)), "tail"])
    lines = blamed(chain(old, new))
    assert (lines[0], lines[1], lines[-1]) == (("head", 1), ("new 0", 2), ("tail", 1))


TEXTS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6).map("\n".join)


@given(st.lists(TEXTS, min_size=1, max_size=6), st.integers(1, 7))
def test_the_attributed_version_contains_the_line(values: list[str], page: int) -> None:
    versions = chain(*values)
    lines = blamed(versions, page)
    assert [text for text, _ in lines] == lines_of(values[-1])
    assert lines == blamed(versions, len(versions))
    for text, revision in lines:
        assert text in lines_of(values[revision - 1])


@given(st.lists(st.text("xyz", min_size=1, max_size=3), min_size=1, max_size=8, unique=True))
def test_lines_added_singly_are_attributed_to_their_own_versions(added: list[str]) -> None:
    values = ["\n".join(added[:count]) for count in range(1, len(added) + 1)]
    assert blamed(chain(*values)) == [(text, at) for at, text in enumerate(added, start=1)]
