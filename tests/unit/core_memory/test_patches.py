"""Patches of agents: parsing, and application to a text."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strata.core_memory.domain.text_edits.diffs import unified_diff
from strata.core_memory.domain.text_edits.messages import TextMissingError
from strata.core_memory.domain.text_edits.patches import Action, apply_section, parse_patch
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.tag_escapes import escape

TEXT = "one\n\ttwo\nthree\nfour\nfive"


def patched(value: str, patch: str) -> str:
    (section,) = parse_patch(patch)
    return apply_section("human", value, section, ["human", "persona"])


def failure(value: str, patch: str) -> FailedPreconditionError:
    with pytest.raises(FailedPreconditionError) as caught:
        patched(value, patch)
    assert caught.value.reason is Reason.EDIT_NOT_APPLICABLE
    assert len(caught.value.message.encode()) <= 600
    return caught.value


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        # Line numbers and counts are ignored: the context decides.
        ("@@ -99,7 +1,1 @@ anything\n \ttwo\n-three\n+3\n four", "one\n\ttwo\n3\nfour\nfive"),
        ("@@\n-one\n", "\ttwo\nthree\nfour\nfive"),
        # Bare lines, without a hunk header.
        ("-\ttwo\n+\t2", "one\n\t2\nthree\nfour\nfive"),
        (" one\n+new", "one\nnew\n\ttwo\nthree\nfour\nfive"),
        # Only additions: they are appended.
        ("@@\n+six\n+\tseven", TEXT + "\nsix\n\tseven"),
        ("+six", TEXT + "\nsix"),
        # Several hunks, in any order, with a line of context in common.
        ("@@\n four\n-five\n+5\n@@\n-one\n+1\n \ttwo", "1\n\ttwo\nthree\nfour\n5"),
        ("@@\n-one\n+1\n \ttwo\n@@\n \ttwo\n+2b\n three", "1\n\ttwo\n2b\nthree\nfour\nfive"),
        ("@@\n+x\n@@\n+y", TEXT + "\nx\ny"),
        # Lines that programs write around a patch.
        (
            "*** Begin Patch\n*** Update Block: human\n@@\n-five\n+5\n*** End Patch",
            "one\n\ttwo\nthree\nfour\n5",
        ),
        (
            "diff --git a/human b/human\nindex 1..2\n--- a/human\n+++ b/human\n@@ -5 @@\n-five\n+5",
            "one\n\ttwo\nthree\nfour\n5",
        ),
        (
            "-five\n\\ No newline at end of file\n+5\n\\ No newline at end of file",
            "one\n\ttwo\nthree\nfour\n5",
        ),
        ("\n\n@@\n-five\n+5\n\n\n", "one\n\ttwo\nthree\nfour\n5"),
    ],
)
def test_hunks_change_the_lines_that_match_their_context(patch: str, expected: str) -> None:
    assert patched(TEXT, patch) == expected


def test_a_patch_fills_and_empties_a_block() -> None:
    assert patched("", "@@ -0,0 +1,2 @@\n+a\n+\tb") == "a\n\tb"
    assert patched("a\nb", "-a\n-b") == ""
    assert patched("a\n", "-a\n-\n+b") == "b"


def test_an_empty_context_line_may_lack_its_leading_blank() -> None:
    assert patched("a\n\nb", "@@\n a\n\n-b\n+c") == "a\n\nc"
    assert patched("a\n\nb", "@@\n\n-b\n+c") == "a\n\nc"


def test_missing_context_is_named() -> None:
    error = failure(TEXT, "@@\n one\n-  two\n+2")
    assert isinstance(error, TextMissingError)
    assert error.message == (
        "Failed to apply patch: expected hunk context not found in memory block `human`: line 3 of "
        "the patch, `  two`, is not in the block. Unchanged and removed lines must be those of the "
        "block, blanks and tabs too."
    )


def test_lines_that_are_not_adjacent_are_named() -> None:
    assert "line 4 of the patch, `four`, does not directly follow `\ttwo`." in (
        failure(TEXT, "@@\n one\n \ttwo\n-four\n+4").message
    )
    assert "line 2 of the patch, `a`, is not in the block." in failure("", "@@\n-a\n+b").message


def test_ambiguous_context_is_refused_with_its_line_numbers() -> None:
    error = failure("a\nx\na\ny\na", "@@\n-a\n+b")
    assert error.message == (
        "Failed to apply patch: hunk context matched multiple places in memory block `human`, "
        "beginning at lines [1, 3, 5]. Add more of the lines around the change, so that it is "
        "unique."
    )
    assert error.metadata["lines"] == "[1, 3, 5]"
    assert patched("a\nx\na\ny\na", "@@\n x\n-a\n+b") == "a\nx\nb\ny\na"
    assert failure("a\n" * 30 + "b", "-a").message.count(", ...]") == 1


@pytest.mark.parametrize(
    "patch", ["", "\n\n", "@@", "@@\n one", " one\n \ttwo", "--- a/x\n+++ b/x"]
)
def test_a_patch_that_changes_nothing_is_refused(patch: str) -> None:
    assert failure(TEXT, patch).message.startswith("No applicable hunks found in patch. ")


@pytest.mark.parametrize(
    ("patch", "named"),
    [
        ("@@\n-one\n+1\n@@\n-one\n+uno", "two hunks change line 1"),
        ("@@\none\n+1", "line 2 of the patch, `one`, must start with"),
        ("*** Rename Block: a", "must start with"),
        ("*** Move to: b", "must come directly after"),
        ("*** Delete Block: a\n*** Move to: b", "must come directly after"),
        ("*** Update Block: a\n@@\n-one\n+1\n*** Move to: b", "must come directly after"),
        ("*** Add Block: a\n+x\n y", "line 3 of the patch, ` y`, must begin with '+'"),
        ("@@\n-a\n" * 501, "it has more than 500 hunks"),
        ("*** Delete Block: a\n" * 101, "it names more than 100 blocks"),
    ],
)
def test_an_invalid_patch_is_refused_with_its_line(patch: str, named: str) -> None:
    assert named in failure(TEXT, patch).message


def test_headers_name_the_blocks_and_actions() -> None:
    patch = (
        "*** Begin Patch\n*** Add Block: /memories/new/one\n+a\n+\n+\tb\n*** Update Block: human\n"
        "*** Move to: person\n@@\n-x\n+y\n*** Delete Block: old\n--- /dev/null\n+++ b/fresh\n@@\n"
        "+c\n--- a/gone\t2026-01-01\n+++ /dev/null\n@@\n-d\n--- a/from\n+++ b/to\n*** End Patch"
    )
    sections = parse_patch(patch)
    assert [(section.action, section.label, section.new_label) for section in sections] == [
        (Action.ADD, "new_one", ""),
        (Action.UPDATE, "human", "person"),
        (Action.DELETE, "old", ""),
        (Action.ADD, "fresh", ""),
        (Action.DELETE, "gone", ""),
        (Action.UPDATE, "from", "to"),
    ]
    assert sections[0].text == "a\n\n\tb"
    assert sections[3].text == "c"


def test_lines_copied_from_the_prompt_are_found() -> None:
    value = "say </value>\nand <persona>"
    shown = escape(value, ["human", "persona"]).split("\n")
    assert shown[0] != "say </value>"
    assert patched(value, f"@@\n-{shown[0]}\n+{shown[0]}!\n {shown[1]}") == (
        "say </value>!\nand <persona>"
    )


WORDS = st.lists(st.sampled_from(["a", "b", "\tc", "", "-", "+ d"]), max_size=10)


@given(WORDS, WORDS)
def test_a_diff_is_a_patch(old: list[str], new: list[str]) -> None:
    before, after = "\n".join(old), "\n".join(new)
    assume(before != after)
    # Ambiguous context is refused, which another test checks.
    try:
        assert patched(before, unified_diff(before, after)) == after
    except FailedPreconditionError as error:
        assert "multiple places" in error.message
    numbered = [f"{number} {line}" for number, line in enumerate(old)]
    kept = [line for line in numbered if not line.endswith("b")]
    assume(kept != numbered)
    before, after = "\n".join(numbered), "\n".join(kept)
    assert patched(before, unified_diff(before, after)) == after


@given(WORDS, WORDS)
def test_lines_outside_of_a_hunk_are_unchanged(head: list[str], tail: list[str]) -> None:
    value = "\n".join([*head, "here\tit is ", *tail])
    expected = "\n".join([*head, "there", *tail])
    assert patched(value, "@@\n-here\tit is \n+there") == expected


@pytest.mark.parametrize(
    "patch",
    [" one\n-\ttwo\n+2\n+2b\n three", " one\r\n-\ttwo\r\n+2\r\n+2b\r\n three\r\n"],
)
def test_a_patch_of_a_text_with_crlf_keeps_its_line_ends(patch: str) -> None:
    value = TEXT.replace("\n", "\r\n")
    assert patched(value, patch) == "one\r\n2\r\n2b\r\nthree\r\nfour\r\nfive"
