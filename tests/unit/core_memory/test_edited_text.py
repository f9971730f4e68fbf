"""The memory verbs: golden messages, and properties of every edit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strata.core_memory.domain.blocks import Block
from strata.core_memory.domain.text_edits.diffs import unified_diff
from strata.core_memory.domain.text_edits.edited_text import (
    apply_edit,
    check_no_line_numbers,
    merge_edit,
)
from strata.core_memory.domain.text_edits.messages import success_message, unknown_label
from strata.core_memory.domain.text_edits.verbs import (
    Append,
    Create,
    Edit,
    Insert,
    Patch,
    Rename,
    Replace,
    Rethink,
    StringReplace,
    TextEdit,
)
from strata.protocol.errors import AbortedError, FailedPreconditionError, Reason, StrataError
from strata.shared.tag_escapes import escape

NOW = datetime(2026, 11, 21, tzinfo=UTC)
EDITED = (
    "The core memory block with label `human` has been edited. Review the changes and make sure "
    "they are as expected (correct indentation, no duplicate lines, etc). Edit the memory block "
    "again if necessary."
)


def human(value: str, *, limit: int = 20000, read_only: bool = False) -> Block:
    return Block("block-1", "human", value, "About.", limit, read_only, 1, NOW, NOW)


def failure(block: Block, edit: TextEdit) -> FailedPreconditionError:
    with pytest.raises(FailedPreconditionError) as caught:
        apply_edit(block, edit)
    return caught.value


def test_append_joins_with_a_newline() -> None:
    assert apply_edit(human("a\tb"), Append("c")) == "a\tb\nc"
    assert success_message(Append("c"), "human") == "None"


def test_append_to_an_empty_block_leaves_no_empty_line() -> None:
    assert apply_edit(human(""), Append("c")) == "c"


def test_replace_changes_every_occurrence_also_inside_words() -> None:
    assert apply_edit(human("cat concat"), Replace("cat", "dog")) == "dog condog"
    assert success_message(Replace("cat", "dog"), "human") == "None"


def test_replace_of_missing_text_is_refused() -> None:
    error = failure(human("abc"), Replace("xyz", "q"))
    assert error.message == "Old content 'xyz' not found in memory block 'human'"
    assert error.reason is Reason.EDIT_NOT_APPLICABLE


def test_replace_of_nothing_is_refused() -> None:
    assert failure(human("abc"), Replace("", "q")).reason is Reason.EDIT_NOT_APPLICABLE


def test_string_replace_changes_the_one_occurrence() -> None:
    assert apply_edit(human("a\n\tb\nc"), StringReplace("\tb", "x")) == "a\nx\nc"
    assert success_message(StringReplace("b", "x"), "human") == EDITED


def test_string_replace_of_missing_text_is_refused() -> None:
    assert failure(human("abc"), StringReplace("X", "q")).message == (
        "No replacement was performed, old_str `X` did not appear verbatim in memory block with "
        "label `human`."
    )


def test_string_replace_of_a_repeated_text_names_the_lines() -> None:
    error = failure(human("a\nX\nbX"), StringReplace("X", "q"))
    assert error.message == (
        "No replacement was performed. Multiple occurrences of old_str `X` in lines [2, 3]. "
        "Please ensure it is unique."
    )
    assert error.metadata["lines"] == "[2, 3]"


@pytest.mark.parametrize(
    ("value", "old", "lines"),
    [
        ("X X", "X", "[1]"),
        ("a\nb\na\nb", "a\nb", "[1, 3]"),
        ("aaa", "aa", "[1]"),
        ("\n".join("x" * 30), "x", f"[{', '.join(map(str, range(1, 21)))}, ...]"),
    ],
)
def test_the_lines_are_those_in_which_an_occurrence_begins(
    value: str, old: str, lines: str
) -> None:
    assert failure(human(value), StringReplace(old, "q")).metadata["lines"] == lines


@pytest.mark.parametrize("value", ["", "a", "a\nb"])
def test_string_replace_of_nothing_is_refused(value: str) -> None:
    error = failure(human(value), StringReplace("", "first"))
    assert error.message.startswith("No replacement was performed, old_str is empty. ")
    assert error.reason is Reason.EDIT_NOT_APPLICABLE


@pytest.mark.parametrize(
    ("line", "expected"),
    [(0, "new\n1\n2\n"), (1, "1\nnew\n2\n"), (2, "1\n2\nnew\n"), (-1, "1\n2\n\nnew")],
)
def test_insert_puts_lines_after_the_named_one(line: int, expected: str) -> None:
    assert apply_edit(human("1\n2\n"), Insert("new", line)) == expected
    assert success_message(Insert("new", line), "human") == EDITED


@pytest.mark.parametrize("line", [0, -1])
def test_insert_into_an_empty_block_leaves_no_empty_line(line: int) -> None:
    assert apply_edit(human(""), Insert("into empty", line)) == "into empty"


@pytest.mark.parametrize("line", [99, -2])
def test_insert_outside_the_lines_names_their_range(line: int) -> None:
    error = failure(human("1\n2\n3\n4\n5\n6\n7"), Insert("x", line))
    assert error.message.startswith(
        f"Invalid `insert_line` parameter: {line}. It should be within the range of lines of the "
        "memory block: [0, 7], or -1 to append "
    )


def test_rethink_rewrites_the_value() -> None:
    assert apply_edit(human("old"), Rethink("new\ttext")) == "new\ttext"
    assert success_message(Rethink("new"), "human") == EDITED


@pytest.mark.parametrize(
    "edit",
    [
        Append("x"),
        Replace("a", "x"),
        StringReplace("a", "x"),
        Insert("x"),
        Rethink("x"),
        Replace("not there", "x"),
    ],
)
def test_a_read_only_block_refuses_every_verb(edit: TextEdit) -> None:
    error = failure(human("a", read_only=True), edit)
    assert error.message == "Error This block is read-only and cannot be edited."
    assert error.reason is Reason.BLOCK_READ_ONLY


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (Append("new"), "\tone  \nhere\t\r\n\n two\t\nnew"),
        (Replace("here", "new"), "\tone  \nnew\t\r\n\n two\t"),
        (StringReplace("here", "new"), "\tone  \nnew\t\r\n\n two\t"),
        (Insert("new", 1), "\tone  \nnew\nhere\t\r\n\n two\t"),
    ],
)
def test_tabs_and_blanks_around_an_edit_stay(edit: TextEdit, expected: str) -> None:
    assert apply_edit(human("\tone  \nhere\t\r\n\n two\t"), edit) == expected


def test_the_limit_is_counted_in_characters_and_explained() -> None:
    assert apply_edit(human("🙂" * 8, limit=10), Append("🙂")) == "🙂" * 8 + "\n🙂"
    error = failure(human("🙂" * 8, limit=10), Append("🙂🙂"))
    assert error.message.startswith("Value length (11 characters) exceeds block limit (10 char")
    assert error.reason is Reason.BLOCK_LIMIT_EXCEEDED
    assert (error.metadata["length"], error.metadata["limit"]) == ("11", "10")


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (StringReplace("1→ a", "b"), "old_str"),
        (StringReplace("a", "x\n \t12→b"), "new_str"),
        (Insert("3→ x"), "new_str"),
        (Rethink("ok\n1→ x"), "new_memory"),
        (Append("1→ x"), "content"),
        (Replace("a", "1→ x"), "new_content"),
        (Create("1→ x"), "file_text"),
        (Create("x", "1→ x"), "description"),
        (Rename(description="1→ x"), "description"),
        (Patch("@@\n 1→ a\n+b"), "patch"),
        (Patch("@@\n-1→ a"), "patch"),
        (Patch("@@\n-a\n+\t12→ b"), "patch"),
        (Patch("1→ a\n+b"), "patch"),
        (Patch("*** Add Block: x\n+1→ a"), "patch"),
    ],
)
def test_line_number_prefixes_are_refused(edit: Edit, name: str) -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        check_no_line_numbers("human", edit)
    assert caught.value.message.startswith(
        f"{name} contains a line number prefix, which is not allowed. "
    )


@pytest.mark.parametrize("text", ["1: a", "→ a", "step 1→ 2", "1 → 2"])
def test_text_that_resembles_a_prefix_passes(text: str) -> None:
    assert apply_edit(human(""), Rethink(text)) == text


def test_an_unknown_label_names_the_known_ones() -> None:
    assert unknown_label("x", ["human", "persona"]).message == (
        "Block field x does not exist (available sections = human, persona)"
    )


def test_long_quotes_leave_the_sentence_whole() -> None:
    error = failure(human("abc"), StringReplace("語" * 5000, "x"))
    assert len(error.message.encode()) < 600
    assert error.message.endswith("did not appear verbatim in memory block with label `human`.")


def test_escaped_text_copied_from_the_prompt_matches() -> None:
    value = "say </value> and <persona>"
    shown = escape(value, ["human", "persona"])
    assert shown != value
    edit = StringReplace(shown, shown + "!")
    assert apply_edit(human(value), edit, ["human", "persona"]) == value + "!"
    assert apply_edit(human(value), Rethink(shown + "!"), ["human", "persona"]) == value + "!"


def test_escaped_text_of_the_block_itself_is_kept() -> None:
    edit = StringReplace("&lt;/value>", "x &lt;/value>")
    assert apply_edit(human("&lt;/value>"), edit) == "x &lt;/value>"
    assert apply_edit(human("plain"), Rethink("&lt;/value>")) == "&lt;/value>"


def test_an_insertion_is_merged_at_the_position_that_the_agent_saw() -> None:
    block = human("0\na\nb\nc")
    assert merge_edit(block, Insert("new", 2), base="a\nb\nc") == "0\na\nb\nnew\nc"


def test_a_rewrite_keeps_additions_of_others() -> None:
    block = human("likes tea\nhas a cat")
    assert merge_edit(block, Rethink("likes green tea"), base="likes tea") == (
        "likes green tea\nhas a cat"
    )


def test_a_conflict_shows_the_text_as_it_is() -> None:
    with pytest.raises(AbortedError) as caught:
        merge_edit(human("likes coffee"), Rethink("likes milk"), base="likes tea")
    assert caught.value.reason is Reason.EDIT_CONFLICT
    assert caught.value.message == (
        "Memory block 'human' was changed by others since you read it, and your edit overlaps "
        "with their change. Nothing was done. Edit its current text (revision 1), which is:\n"
        "likes coffee"
    )
    assert caught.value.metadata == {"label": "human", "revision": "1"}


def test_a_conflict_shows_both_ends_of_a_long_text() -> None:
    value = "a" * 2500 + "b" * 2500
    with pytest.raises(AbortedError) as caught:
        merge_edit(human(value), Rethink("x"), base="y")
    _, _, shown = caught.value.message.partition("which is:\n")
    assert shown == "a" * 2000 + "\n[... 1000 characters left out ...]\n" + "b" * 2000


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (Rethink("1→ x"), Reason.EDIT_NOT_APPLICABLE),
        (Insert("x", 3), Reason.EDIT_NOT_APPLICABLE),
        (Rethink("12345678"), Reason.BLOCK_LIMIT_EXCEEDED),
    ],
)
def test_a_merged_edit_is_checked_like_any_other(edit: TextEdit, reason: Reason) -> None:
    block = human("now\na", limit=11)
    assert merge_edit(block, Rethink("1234567"), base="a") is not None
    with pytest.raises(FailedPreconditionError) as caught:
        merge_edit(block, edit, base="a")
    assert caught.value.reason is reason


def test_a_merged_edit_cannot_change_a_read_only_block() -> None:
    with pytest.raises(FailedPreconditionError) as caught:
        merge_edit(human("a", read_only=True), Rethink("b"), base="")
    assert caught.value.reason is Reason.BLOCK_READ_ONLY


VALUES = st.text(alphabet="ab\n\t <>/é🙂→1", max_size=30)
# Without the arrow, no part of it can be read as a line number.
PLAIN = st.text(alphabet="ab\n\t <>/é🙂1", max_size=30)
EDITS = st.one_of(
    st.builds(Append, VALUES),
    st.builds(Replace, VALUES, VALUES),
    st.builds(StringReplace, VALUES, VALUES),
    st.builds(Insert, VALUES, st.integers(-2, 6)),
    st.builds(Rethink, VALUES),
)


@given(VALUES, st.lists(EDITS, max_size=12), st.integers(0, 60), st.booleans())
def test_random_edits_never_exceed_the_limit_or_change_a_read_only_block(
    value: str, edits: list[TextEdit], service: int, read_only: bool
) -> None:
    block = human(value, limit=len(value) + service, read_only=read_only)
    for edit in edits:
        try:
            block = replace(block, value=apply_edit(block, edit))
        except StrataError:
            continue
        assert len(block.value) <= block.limit
        assert not read_only
    assert not read_only or block.value == value


@given(PLAIN, PLAIN, PLAIN, PLAIN)
def test_string_replace_keeps_all_other_text(before: str, core: str, after: str, new: str) -> None:
    # The bars occur nowhere else, so the old text occurs once.
    old = f"|{core}|"
    value = before + old + after
    assert apply_edit(human(value), StringReplace(old, new)) == before + new + after


@given(st.lists(st.text(alphabet="ab\t é", max_size=5), min_size=1, max_size=6), PLAIN, st.data())
def test_insert_keeps_all_other_text(lines: list[str], new: str, data: st.DataObject) -> None:
    value = "\n".join(lines)
    assume(value)
    after = data.draw(st.integers(0, len(lines)))
    edited = apply_edit(human(value), Insert(new, after)).split("\n")
    count = new.count("\n") + 1
    assert edited[:after] + edited[after + count :] == lines
    assert "\n".join(edited[after : after + count]) == new


@given(PLAIN.filter(bool), PLAIN)
def test_append_keeps_all_other_text(value: str, new: str) -> None:
    assert apply_edit(human(value), Append(new)) == f"{value}\n{new}"


def test_a_diff_has_no_file_headers() -> None:
    assert unified_diff("a\nb", "a\nc") == "@@ -1,2 +1,2 @@\n a\n-b\n+c"
    assert unified_diff("", "a") == "@@ -0,0 +1 @@\n+a"
    assert unified_diff("a", "a") == ""


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_a_diff_transforms_one_text_into_the_other(old: list[str], new: list[str]) -> None:
    _check_diff(old, new)


def test_a_diff_of_very_long_texts_is_correct() -> None:
    old = [str(number) for number in range(900)]
    new = [*old[:10], "x", *old[12:880], *old[885:]]
    _check_diff(old, new)


def _check_diff(old: list[str], new: list[str]) -> None:
    """Applies the diff by its line marks, which needs no other implementation."""
    diff = unified_diff("\n".join(old), "\n".join(new))
    result, at = [], 0
    for line in diff.split("\n") if diff else []:
        if line.startswith("@@"):
            start, _, length = line.split(" ")[1][1:].partition(",")
            begin = int(start) - (0 if length == "0" else 1)
            result += old[at:begin]
            at = begin
            continue
        mark, text = line[0], line[1:]
        if mark in " -":
            assert old[at] == text
            at += 1
        if mark in " +":
            result.append(text)
    assert result + old[at:] == new


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (StringReplace("one\ntwo", "1\n2"), "1\r\n2\r\nthree"),
        (StringReplace("one\r\ntwo", "1\r\n2"), "1\r\n2\r\nthree"),
        (Replace("two\n", ""), "one\r\nthree"),
        (Append("four\nfive"), "one\r\ntwo\r\nthree\r\nfour\r\nfive"),
        (Insert("new", 1), "one\r\nnew\r\ntwo\r\nthree"),
        (Insert("new", -1), "one\r\ntwo\r\nthree\r\nnew"),
        (Rethink("a\nb"), "a\r\nb"),
    ],
)
def test_edits_of_a_text_with_crlf_keep_its_line_ends(edit: TextEdit, expected: str) -> None:
    assert apply_edit(human("one\r\ntwo\r\nthree"), edit) == expected


def test_a_text_with_both_line_ends_is_edited_as_it_is() -> None:
    assert (
        apply_edit(human("one\r\ntwo\nthree"), StringReplace("two\n", "2\n")) == "one\r\n2\nthree"
    )
    assert failure(human("one\r\ntwo\nthree"), StringReplace("one\n", "1\n")).reason is (
        Reason.EDIT_NOT_APPLICABLE
    )
