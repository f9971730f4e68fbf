"""Detects the format and the encoding of files from name, media type and first bytes."""

from __future__ import annotations

import codecs
import re
from enum import StrEnum
from pathlib import PurePosixPath

HEAD_BYTES = 16 * 1024
"""Number of first bytes that are used for detection."""

READABLE = "text, Markdown, source code, CSV, HTML, PDF and DOCX"
"""The formats that can be read, for messages."""

_PDF = "application/pdf"
_DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_BY_MEDIA_TYPE = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/markdown": "markdown",
    "text/csv": "csv",
    "text/tab-separated-values": "csv",
}
_BY_SUFFIX = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".md", ".markdown", ".mdown", ".mkd"), "markdown"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".txt", ".text", ".log"), "text"),
}
_CODE_SUFFIXES = frozenset(
    (
        *(".bash", ".bat", ".c", ".cc", ".cfg", ".clj", ".cmake", ".conf", ".cpp"),
        *(".cs", ".css", ".cxx", ".dart", ".diff", ".dockerfile", ".el", ".elm", ".erl"),
        *(".ex", ".exs", ".f90", ".fs", ".go", ".gradle", ".graphql", ".groovy", ".h"),
        *(".hpp", ".hrl", ".hs", ".ini", ".ipynb", ".java", ".jl", ".js", ".json"),
        *(".jsonl", ".jsx", ".kt", ".kts", ".less", ".lisp", ".lua", ".m", ".mjs"),
        *(".ml", ".mm", ".nim", ".nix", ".patch", ".php", ".pl", ".pm", ".proto"),
        *(".ps1", ".py", ".pyi", ".r", ".rb", ".rs", ".rst", ".s", ".sass"),
        *(".scala", ".scm", ".scss", ".sh", ".sol", ".sql", ".swift", ".tcl", ".tex"),
        *(".tf", ".toml", ".ts", ".tsx", ".vb", ".vim", ".vue", ".xml", ".yaml"),
        *(".yml", ".zig", ".zsh"),
    )
)
# Documents of Office before 2007, and later ones that are encrypted.
_COMPOUND_FILE = b"\xd0\xcf\x11\xe0"
# Magic numbers of binary formats: not text, even if a decoder accepts it.
_BINARY = (
    *(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\x00", b"MM\x00*", b"RIFF"),
    *(b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"),
    *(b"7z\xbc\xaf", b"Rar!\x1a", b"\x28\xb5\x2f\xfd", b"\x7fELF", b"MZ", b"\xca\xfe\xba\xbe"),
    *(_COMPOUND_FILE, b"SQLite format 3\x00", b"OggS", b"ID3", b"fLaC", b"wOFF", b"wOF2"),
    *(b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\x00asm", b"%!PS-Adobe"),
)
# These consist of letters that a text may start with.
_AMBIGUOUS = frozenset((b"BM", b"MZ", b"ID3", b"RIFF", b"OggS", b"GIF8", b"BZh"))
_PDF_WITHIN = 1024
_BOMS = (
    # UTF-32 first: its little-endian byte order mark begins with the mark of UTF-16.
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Control characters that occur in text; the last two in the output of terminals.
_CONTROLS = frozenset("\t\n\v\f\r\b\x1b")
_MOST_CONTROLS = 0.01
_TELLING_BYTES = 256
UTF_8 = frozenset(("utf-8", "utf-8-sig"))
"""The encodings whose texts may have a few invalid bytes; see `is_utf_8`."""
# Bytes that are not valid UTF-8 (as surrogates), and valid characters beyond ASCII.
INVALID_BYTE = re.compile("[\udc80-\udcff]")
_NOT_ASCII = re.compile("[\x80-\ud7ff\ue000-\U0010ffff]")
# A text with at most one invalid byte in this many non-ASCII characters counts as UTF-8.
_NOT_ASCII_PER_INVALID = 10
# Never used without a byte order mark, but short texts look like them.
_NEVER_GUESSED = ["utf_7", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le"]


class FileFormat(StrEnum):
    """The format of a file, which decides how it is read."""

    TEXT = "text"
    MARKDOWN = "markdown"
    CODE = "code"
    CSV = "csv"
    HTML = "html"
    PDF = "pdf"
    DOCX = "docx"

    @property
    def is_converted(self) -> bool:
        """Whether it needs a converter, not only decoding."""
        return self in (FileFormat.HTML, FileFormat.PDF, FileFormat.DOCX)

    @property
    def has_headings(self) -> bool:
        """Whether its text has headings of Markdown; HTML and DOCX are converted to Markdown."""
        return self in (FileFormat.MARKDOWN, FileFormat.HTML, FileFormat.DOCX)


def kind_of(name: str, media_type: str, head: bytes) -> FileFormat | None:
    """Returns the format of a file, None if it cannot be read.

    The bytes take precedence over the name: an image named ``notes.txt`` cannot be read, a
    text named ``notes.png`` can.

    Args:
        name: Its name.
        media_type: The MIME type that the client sent; may be empty.
        head: Its first `HEAD_BYTES` bytes, or all if it is shorter.
    """
    suffix = PurePosixPath(name.lower()).suffix
    media_type = media_type.partition(";")[0].strip().lower()
    head = head[:HEAD_BYTES]
    if _is_pdf(head, named=suffix == ".pdf" or media_type == _PDF):
        return FileFormat.PDF
    if head.startswith(b"PK\x03\x04") and (suffix == ".docx" or media_type == _DOCX):
        return FileFormat.DOCX
    if not head:
        return _kind_of_text(suffix, media_type)
    if suffix in (".pdf", ".docx") or not _is_text(head):
        return None
    return _kind_of_text(suffix, media_type)


def refusal_of(name: str, head: bytes) -> str:
    """Returns why a file of an unknown format cannot be read, for a person.

    Args:
        name: Its name.
        head: See `kind_of`.
    """
    if head.startswith(_COMPOUND_FILE):
        return (
            f"The file {name!r} is an Office document that is protected by a password, or of a"
            f" version before 2007. It cannot be read. Supported formats: {READABLE}."
        )
    return f"The file {name!r} cannot be read. Supported formats: {READABLE}."


def encoding_of(head: bytes) -> str | None:
    """Returns the encoding of a text, None if it is not text.

    A byte order mark decides. Without one it is UTF-8 if that is valid but for a few bytes, else
    the encoding that the frequencies of characters indicate.

    Args:
        head: The beginning of the text; a character may be cut off at its end.
    """
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    if b"\x00" in head:
        return None
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(head)
    return "utf-8" if is_utf_8(*utf_8_counts(text)) else guess_encoding(head)


def utf_8_counts(text: str) -> tuple[int, int]:
    """Counts the invalid bytes and the non-ASCII characters of UTF-8.

    Args:
        text: The text, decoded with the error handler "surrogateescape".
    """
    if text.isascii():
        return 0, 0
    return len(INVALID_BYTE.findall(text)), len(_NOT_ASCII.findall(text))


def is_utf_8(invalid: int, not_ascii: int) -> bool:
    """Returns whether a text is UTF-8, apart from a few damaged characters.

    In texts of other encodings few sequences of bytes are valid UTF-8 by chance.

    Args:
        invalid: The number of bytes that are not valid UTF-8.
        not_ascii: The number of valid characters beyond ASCII.
    """
    return not_ascii >= invalid * _NOT_ASCII_PER_INVALID


def guess_encoding(sample: bytes) -> str | None:
    """Returns the most likely encoding of a text that is not UTF-8; None if none fits.

    Short texts with few non-ASCII bytes count as cp1252, since frequencies say nothing there.
    """
    foreign = sum(1 for byte in sample if byte > 0x7F)
    if len(sample) < _TELLING_BYTES and foreign * 4 < len(sample):
        try:
            sample.decode("cp1252")
        except UnicodeDecodeError:
            pass
        else:
            return "cp1252"
    from charset_normalizer import from_bytes  # noqa: PLC0415 - 2 MB, seldom needed

    best = from_bytes(sample, cp_exclusion=_NEVER_GUESSED).best()
    return best.encoding if best is not None else None


def _is_pdf(head: bytes, *, named: bool) -> bool:
    """Returns whether a file is a PDF.

    Other bytes may precede its mark. A text that mentions the mark is none, unless it is named so.
    """
    at = head.find(b"%PDF-", 0, _PDF_WITHIN)
    return at == 0 or (at > 0 and (named or not _is_text(head)))


def _is_text(head: bytes) -> bool:
    binary_magic = next((magic for magic in _BINARY if head.startswith(magic)), None)
    if binary_magic is not None and binary_magic not in _AMBIGUOUS:
        return False
    encoding = encoding_of(head)
    if encoding is None:
        return False
    errors = "replace" if encoding in UTF_8 else "strict"
    try:
        text = codecs.getincrementaldecoder(encoding)(errors).decode(head)
    except UnicodeDecodeError:
        return False
    controls = sum(1 for character in text if character < " " and character not in _CONTROLS)
    return "\x00" not in text and controls <= len(text) * _MOST_CONTROLS


def _kind_of_text(suffix: str, media_type: str) -> FileFormat:
    """Returns the format of a text; name and media type decide."""
    kind = _BY_SUFFIX.get(suffix) or _BY_MEDIA_TYPE.get(media_type)
    if kind is not None:
        return FileFormat(kind)
    return FileFormat.CODE if suffix in _CODE_SUFFIXES else FileFormat.TEXT
