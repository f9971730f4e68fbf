"""Decodes text files piece by piece.

Only line ends change (CRLF and CR become LF). Tabs, trailing spaces and all other
characters stay, so that quotes of a model match the file.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import BinaryIO

from strata.core_memory.files.text_extraction.formats import (
    INVALID_BYTE,
    UTF_8,
    encoding_of,
    guess_encoding,
    is_utf_8,
    utf_8_counts,
)
from strata.core_memory.files.text_extraction.pages import UnreadableFileError

_PIECE_BYTES = 128 * 1024
_SAMPLE_BYTES = 16 * 1024
# Encodings that only a byte order mark indicates.
_MARKED = frozenset(("utf-16", "utf-32"))

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
    if encoding not in UTF_8:
        # A guess follows from the beginning, so some later bytes may be invalid in the encoding.
        return encoding, "strict" if encoding in _MARKED else "replace"
    invalid, not_ascii, at = _census(file)
    if not invalid:
        return encoding, "strict"
    if is_utf_8(invalid, not_ascii):
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
    invalid, not_ascii, at, position = 0, 0, 0, 0
    file.seek(0)
    while True:
        data = file.read(_PIECE_BYTES)
        text = decoder.decode(data, final=not data)
        more_invalid, more_not_ascii = utf_8_counts(text)
        if more_invalid and not invalid:
            first = INVALID_BYTE.search(text)
            assert first is not None
            at = position + len(text[: first.start()].encode("utf-8", "surrogateescape"))
        invalid += more_invalid
        not_ascii += more_not_ascii
        position += len(data)
        if not data:
            return invalid, not_ascii, at
