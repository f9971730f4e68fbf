"""Text as numbered lines in pages, and the decoding before it."""

from __future__ import annotations

import io
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core_memory.files.text_extraction.pages import (
    MAX_LINE_CHARS,
    PAGE_CHARS,
    ParsedPage,
    UnreadableFileError,
    pages_of,
)
from strata.core_memory.files.text_extraction.text_decoder import text_of


def read(data: bytes) -> list[ParsedPage]:
    return list(pages_of(text_of(io.BytesIO(data))))


def lines_of(pages: list[ParsedPage]) -> list[str]:
    return [line for page in pages for line in page.text.split("\n")]


def check(pages: list[ParsedPage]) -> None:
    """Asserts that the positions of pages are consecutive."""
    next_line = 1
    for number, page in enumerate(pages):
        assert page.number == number
        assert page.first_line == next_line
        assert len(page.text.split("\n")) == page.line_count
        next_line += page.line_count


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one", ["one"]),
        (b"one\n", ["one"]),
        (b"\n", [""]),
        (b"one\n\ntwo\n", ["one", "", "two"]),
        (b"one\r\ntwo\rthree\n", ["one", "two", "three"]),
        (b"\ttab  \n trailing \t", ["\ttab  ", " trailing \t"]),
        ("\N{LINE SEPARATOR}a\fb\vc\x85d".encode(), ["\N{LINE SEPARATOR}a\fb\vc\x85d"]),
        ("Grüße\n世界".encode("utf-16"), ["Grüße", "世界"]),
        ("Grüße\n".encode("utf-8-sig"), ["Grüße"]),
        ("Grüße aus München\n".encode("latin-1"), ["Grüße aus München"]),
    ],
)
def test_text_is_split_into_lines(data: bytes, lines: list[str]) -> None:
    pages = read(data)
    check(pages)
    assert lines_of(pages) == lines


@given(
    st.lists(st.text(st.characters(exclude_characters="\x00\r", codec="utf-8"), max_size=40)),
    st.booleans(),
)
def test_every_character_is_kept(lines: list[str], ends: bool) -> None:
    text = "\n".join(lines) + ("\n" if ends and lines else "")
    data = text.encode()
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        return
    pages = read(data)
    check(pages)
    assert lines_of(pages) == (text.removesuffix("\n").split("\n") if text else [])


@given(st.lists(st.text("ab\n", max_size=30)), st.text("x\n", max_size=5))
def test_pages_do_not_depend_on_the_size_of_the_pieces(pieces: list[str], end: str) -> None:
    whole = "".join(pieces) + end
    assert list(pages_of([*pieces, end])) == list(pages_of([whole]))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_long_lines_are_broken(length: int) -> None:
    full = "x" * MAX_LINE_CHARS
    assert lines_of(read(f"{full * length}\nshort".encode())) == [full] * length + ["short"]
    assert lines_of(read(f"{full * length}y\n".encode())) == [full] * length + ["y"]


def test_a_page_ends_after_the_line_that_fills_it() -> None:
    pages = read(b"some text\n" * 50_000)
    check(pages)
    assert len(pages) > 5
    assert all(
        PAGE_CHARS <= len(page.text) + 1 < PAGE_CHARS + MAX_LINE_CHARS for page in pages[:-1]
    )


def test_a_line_of_fifty_megabytes_is_read_a_page_at_a_time() -> None:
    file = io.BytesIO(b"x" * (50 * 1024 * 1024))
    tracemalloc.start()
    try:
        count = sum(page.line_count for page in pages_of(text_of(file)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 50 * 1024 * 1024 // MAX_LINE_CHARS + 1
    assert peak < 5 * 1024 * 1024


@pytest.mark.parametrize(
    "data",
    [
        b"x" * 300_000 + b"\x00",
        "text".encode("utf-16") + b"\x00",
        "zero\x00".encode("utf-16"),
    ],
)
def test_binary_data_after_text_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableFileError):
        read(data)


@pytest.mark.parametrize("position", [19, 380_000])
def test_a_few_invalid_bytes_do_not_change_the_encoding(position: int) -> None:
    text = "Größe und Übermut, " * 40_000
    damaged = text[:position].encode() + b"\xff" + text[position:].encode()
    assert lines_of(read(damaged))[0].startswith("Größe und Übermut")
    assert "".join(lines_of(read(damaged))).count("\N{REPLACEMENT CHARACTER}") == 1


def test_other_encodings_are_detected_anywhere_in_the_file() -> None:
    data = b"plain text\n" * 30_000 + "Grüße aus München".encode("latin-1")
    assert lines_of(read(data))[-1] == "Grüße aus München"


def test_bytes_that_a_detected_encoding_lacks_are_replaced() -> None:
    data = ("Grüße aus München, " * 2_000).encode("cp1252")
    # cp1252 has no character for this byte, nor have similar encodings.
    last_line = lines_of(read(data + b"\x81\x90" + data))[-1]
    assert last_line.endswith("Grüße aus München, ")
