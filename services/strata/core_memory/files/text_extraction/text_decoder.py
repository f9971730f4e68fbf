"""Decodes text files piece by piece.

Only line ends change (CRLF and CR become LF). Tabs, trailing spaces and all other
characters stay, so that quotes of a model match the file.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from typing import BinaryIO

from strata.core_memory.files.text_extraction.formats import encoding_of, guess_encoding
from strata.core_memory.files.text_extraction.pages import UnreadableFileError

_PIECE_BYTES = 128 * 1024
_SAMPLE_BYTES = 16 * 1024
# Bytes that are not valid UTF-8 (as surrogates), and valid characters beyond ASCII.
_WRONG = re.compile("[\udc80-\udcff]")
_FOREIGN = re.compile("[\x80-\ud7ff\ue000-\U0010ffff]")
# A file with at most one invalid byte in this many non-ASCII characters still counts as UTF-8.
_FOREIGN_PER_WRONG = 10

_BINARY = "The file holds binary data, not text."


def text_of(file: BinaryIO) -> Iterator[str]:
    """Yields the text of a file in pieces.

    Args:
        file: Its bytes; must be seekable, since it is read twice.

    Raises:
        UnreadableFileError: It is not text, or its encoding is unknown.
    """
    encoding, errors = _encoding_of(file)
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder(encoding)(errors), translate=True
    )
    file.seek(0)
    try:
        while data := file.read(_PIECE_BYTES):
            yield _checked(decoder.decode(data))
        yield _checked(decoder.decode(b"", final=True))
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"The text of the file is not valid {encoding}.") from error


def _checked(text: str) -> str:
    if "\x00" in text:
        raise UnreadableFileError(_BINARY)
    return text


def _encoding_of(file: BinaryIO) -> tuple[str, str]:
    """Returns the encoding of the file, and the error handler for invalid bytes."""
    file.seek(0)
    encoding = encoding_of(file.read(_SAMPLE_BYTES))
    if encoding is None:
        raise UnreadableFileError(_BINARY)
    if encoding not in ("utf-8", "utf-8-sig"):
        return encoding, "strict"
    wrong, foreign, at = _census(file)
    if not wrong:
        return encoding, "strict"
    if foreign >= wrong * _FOREIGN_PER_WRONG:
        return encoding, "replace"
    file.seek(max(0, at - _SAMPLE_BYTES // 2))
    guessed = guess_encoding(file.read(_SAMPLE_BYTES))
    if guessed is None:
        raise UnreadableFileError(_BINARY)
    # The file may contain bytes that are not in the sample and invalid in the encoding.
    return guessed, "replace"


def _census(file: BinaryIO) -> tuple[int, int, int]:
    """Counts invalid UTF-8 bytes and non-ASCII characters; also returns the first's offset."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    wrong, foreign, at, position = 0, 0, 0, 0
    file.seek(0)
    while True:
        data = file.read(_PIECE_BYTES)
        text = decoder.decode(data, final=not data)
        if not text.isascii():
            first = _WRONG.search(text)
            if first is not None and not wrong:
                before = text[: first.start()].encode("utf-8", "surrogateescape")
                at = position + len(before)
            wrong += len(_WRONG.findall(text))
            foreign += len(_FOREIGN.findall(text))
        position += len(data)
        if not data:
            return wrong, foreign, at
