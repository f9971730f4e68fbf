"""Chunks of files: whole lines within the limit, without losses."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.archival.convert.files import MAX_HEADING_CHARS
from strata.core_memory.files.domain.chunker import CHUNK_CHARS, Chunker
from strata.core_memory.files.domain.ports import Chunk


def cut(*pages: list[str]) -> list[Chunk]:
    chunker = Chunker()
    chunks = [chunk for lines in pages for chunk in chunker.feed(lines)]
    return [*chunks, *chunker.end()]


LINES = st.lists(
    st.one_of(st.text("ab #\t", max_size=200), st.text("wörd ", min_size=900, max_size=3000))
)


@settings(max_examples=40)
@given(LINES)
def test_every_nonblank_line_is_in_a_chunk(lines: list[str]) -> None:
    chunks = cut(lines)
    assert [chunk.ordinal for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert chunk.text.strip()
        assert len(chunk.text) <= CHUNK_CHARS
        if len(lines[chunk.start_line - 1]) <= CHUNK_CHARS:
            whole = lines[chunk.start_line - 1 : chunk.end_line]
            assert chunk.text == "\n".join(whole)
        else:
            assert chunk.start_line == chunk.end_line
            assert chunk.text in lines[chunk.start_line - 1]
    covered = {line for chunk in chunks for line in range(chunk.start_line, chunk.end_line + 1)}
    assert {n for n, line in enumerate(lines, 1) if line.strip()} <= covered


@settings(max_examples=40)
@given(LINES, st.integers(0, 20))
def test_chunks_do_not_depend_on_pages(lines: list[str], at: int) -> None:
    assert cut(lines[:at], lines[at:]) == cut(lines)


@settings(max_examples=40)
@given(st.text("abc ", min_size=CHUNK_CHARS + 1, max_size=5 * CHUNK_CHARS))
def test_long_line_is_split_without_loss(line: str) -> None:
    parts = "".join(chunk.text for chunk in cut([line]))
    assert parts.replace(" ", "") == line.replace(" ", "")


def test_chunk_ends_before_a_heading() -> None:
    text = ["word " * 20] * 7
    first, second = cut([*text, "# Next", *text[:3]])
    assert first.end_line == 7
    assert second.text.startswith("# Next")


def test_blank_files_have_no_chunks() -> None:
    assert cut([]) == []
    assert cut(["", "  ", "\t"]) == []


def headings(lines: list[str], name: str = "") -> list[str]:
    """Returns the heading of the chunk of each paragraph, which is as long as a chunk."""
    chunker = Chunker(name, with_headings=True)
    chunks = [*chunker.feed(lines), *chunker.end()]
    return [chunk.heading for chunk in chunks]


PARAGRAPH = "word " * 200


def test_a_chunk_has_the_name_of_its_file_and_the_headings_above_it() -> None:
    lines = ["# Car", PARAGRAPH, "## Tyres", PARAGRAPH, PARAGRAPH, "# House ##", PARAGRAPH]
    assert headings(lines, "my_things.md") == [
        "my things.md",
        "my things.md\nCar",
        "my things.md\nCar\nTyres",
        "my things.md",
    ]


def test_underlined_lines_count_as_headings() -> None:
    lines = ["Car", "===", PARAGRAPH, "Tyres", "---", PARAGRAPH, PARAGRAPH]
    assert headings(lines)[-1] == "Car\nTyres"


def test_lines_in_code_blocks_do_not_count_as_headings() -> None:
    lines = ["# Install", "```sh", "# as root", "~~~", PARAGRAPH, "```", PARAGRAPH, PARAGRAPH]
    assert headings(lines)[-1] == "Install"


def test_the_heading_of_files_without_headings_is_their_name() -> None:
    chunker = Chunker("tool.py")
    chunks = [*chunker.feed(["# a comment", PARAGRAPH, PARAGRAPH]), *chunker.end()]
    assert {chunk.heading for chunk in chunks} == {"tool.py"}


@settings(max_examples=40)
@given(st.lists(st.text("# =-`~\tx\u2028\x1c", max_size=300)), st.text(max_size=500))
def test_a_heading_is_truncated_to_the_limits_of_the_index(lines: list[str], name: str) -> None:
    chunker = Chunker(name, with_headings=True)
    for chunk in [*chunker.feed([*lines, PARAGRAPH, PARAGRAPH]), *chunker.end()]:
        assert len(chunk.heading) <= MAX_HEADING_CHARS
        assert len(chunk.heading.splitlines()) <= 7
        assert all(line == line.strip() for line in chunk.heading.split("\n"))
