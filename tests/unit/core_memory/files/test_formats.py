"""Detection of formats and encodings: the bytes take precedence over the name."""

from __future__ import annotations

import codecs
import random

import pytest

from file_samples import docx, pdf
from strata.core_memory.files.text_extraction.formats import (
    HEAD_BYTES,
    FileFormat,
    encoding_of,
    kind_of,
    refusal_of,
)

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
WORD_97 = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\x00" * 100


@pytest.mark.parametrize(
    ("name", "media_type", "head", "expected"),
    [
        ("notes.txt", "", b"plain", FileFormat.TEXT),
        ("notes", "", b"plain", FileFormat.TEXT),
        ("notes.md", "", b"# Title", FileFormat.MARKDOWN),
        ("notes", "text/markdown; charset=utf-8", b"# Title", FileFormat.MARKDOWN),
        ("table.csv", "", b"a,b\n1,2\n", FileFormat.CSV),
        ("main.PY", "", b"print()", FileFormat.CODE),
        ("page.html", "", b"<p>hi</p>", FileFormat.HTML),
        ("page", "text/html", b"<p>hi</p>", FileFormat.HTML),
        ("page.txt", "text/html", b"<p>hi</p>", FileFormat.TEXT),
        ("paper.pdf", "", pdf(["x"]), FileFormat.PDF),
        ("paper", "", pdf(["x"]), FileFormat.PDF),
        ("letter.docx", "", docx("x"), FileFormat.DOCX),
        ("empty.txt", "", b"", FileFormat.TEXT),
        ("empty", "", b"", FileFormat.TEXT),
        ("on-pdf.md", "", b"# Formats\n\nA PDF begins with %PDF-1.7.\n", FileFormat.MARKDOWN),
        ("preceded.pdf", "", b"a line of a mail\n" + pdf(["x"]), FileFormat.PDF),
        ("preceded", "application/pdf", b"a line of a mail\n" + pdf(["x"]), FileFormat.PDF),
        ("preceded", "", b"\x00\x01\n" + pdf(["x"]), FileFormat.PDF),
        # The limit counts bytes.
        ("text.png", "image/png", b"not an image at all", FileFormat.TEXT),
        ("mz.txt", "", b"MZ are the initials of Mark Zbikowski", FileFormat.TEXT),
    ],
)
def test_readable_formats_are_recognised(
    name: str, media_type: str, head: bytes, expected: FileFormat
) -> None:
    assert kind_of(name, media_type, head) is expected


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("image.png", PNG),
        ("notes.txt", PNG),
        ("notes.txt", b"text, and then\x00\x01\x02 none"),
        ("letter.doc", WORD_97),
        ("encrypted.docx", WORD_97),
        ("letter.docx", b"a text that is called a document"),
        ("paper.pdf", b"a text that is called a paper"),
        ("things.zip", docx("x")),
        ("things.tar.gz", b"\x1f\x8b\x08\x00" + b"x" * 50),
        ("program", b"\x7fELF\x02\x01\x01"),
        ("program.exe", b"MZ\x90\x00\x03\x00"),
        ("control.txt", b"\x01\x02\x03\x04 text \x05\x06\x07"),
        ("utf16-without-mark.txt", "text".encode("utf-16-le")),
    ],
)
def test_unreadable_formats_are_not_recognised(name: str, head: bytes) -> None:
    assert kind_of(name, "", head) is None


def test_the_refusal_of_an_encrypted_document_names_the_password() -> None:
    # It is no ZIP archive, so "DOCX is supported" alone would contradict its name.
    assert "protected by a password" in refusal_of("encrypted.docx", WORD_97)
    assert "password" not in refusal_of("image.png", PNG)


def test_random_bytes_are_not_recognised_as_text() -> None:
    source = random.Random(7)
    taken = sum(kind_of("noise.txt", "", source.randbytes(1000)) is not None for _ in range(200))
    assert taken == 0


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"ascii", "utf-8"),
        ("Grüße, 世界".encode(), "utf-8"),
        ("Grüße".encode("utf-8-sig"), "utf-8-sig"),
        ("Grüße".encode("utf-16"), "utf-16"),
        ("Grüße".encode("utf-32"), "utf-32"),
        ("Grüße aus München".encode("latin-1"), "cp1252"),
        (("Привет, как дела? Сегодня хорошая погода. " * 5).encode("cp1251"), "cp1251"),
        # A few damaged characters, such as one that was cut in two.
        (("Größere Böen sind möglich. " * 5).encode() + b"\xff\xc3 Ende", "utf-8"),
        ("Съешь же ещё этих мягких булок. ".encode()[1:], "utf-8"),
        (("東京は今日も晴れです。" * 2).encode()[1:], "utf-8"),
        (b"zero\x00", None),
    ],
)
def test_the_encoding_is_detected(data: bytes, encoding: str | None) -> None:
    assert encoding_of(data) == encoding


@pytest.mark.parametrize("text", ["Съешь же ещё этих булок. ", "東京は今日も晴れです。"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_text_with_a_damaged_character_is_recognised(text: str, mark: bytes) -> None:
    head = mark + text.encode() + b"\xff" + text.encode() * 10
    assert kind_of("notes.txt", "", head) is FileFormat.TEXT


def test_a_character_cut_at_the_end_of_the_head_is_not_an_error() -> None:
    head = ("x" + "ü" * HEAD_BYTES).encode()[:HEAD_BYTES]
    assert kind_of("notes.txt", "", head) is FileFormat.TEXT
