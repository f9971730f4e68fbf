"""Three-way merges of documents."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from strata.cli.memory.document_merge import merge
from strata.cli.memory.markdown import FIELDS, BlockFile

BASE = BlockFile("human", "one\ntwo\nthree\nfour\nfive", "d", 100, False, 3, "block-1")
DOCUMENTS = st.builds(
    BlockFile,
    label=st.sampled_from(["a", "b", "c"]),
    value=st.lists(st.sampled_from("xyz")).map("\n".join),
    description=st.sampled_from(["", "d", "e"]),
    limit=st.integers(1, 3),
    read_only=st.booleans(),
)


def test_changes_of_different_lines_and_fields_are_merged() -> None:
    theirs = replace(BASE, value="ONE\ntwo\nthree\nfour\nfive", limit=200, revision=5)
    mine = replace(BASE, value="one\ntwo\nthree\nfour\nFIVE", description="other")
    merged = merge(BASE, theirs, mine)
    assert merged.conflicts == ()
    assert merged.document == replace(
        theirs, value="ONE\ntwo\nthree\nfour\nFIVE", description="other"
    )


def test_conflicting_changes_keep_the_value_of_the_server() -> None:
    theirs = replace(BASE, value="theirs", limit=200, revision=5)
    mine = replace(BASE, value="mine", limit=300, read_only=True)
    merged = merge(BASE, theirs, mine)
    assert merged.conflicts == ("limit", "value")
    assert merged.document == replace(theirs, read_only=True)


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_a_change_on_one_side_only_is_kept(
    base: BlockFile, theirs: BlockFile, mine: BlockFile
) -> None:
    assert merge(base, base, mine).document.same(mine)
    assert merge(base, theirs, base).document == theirs
    assert merge(base, mine, mine).document == mine
    merged = merge(base, theirs, mine)
    for name in FIELDS:
        values = {getattr(document, name) for document in (base, theirs, mine)}
        if name != "value":
            assert getattr(merged.document, name) in values
