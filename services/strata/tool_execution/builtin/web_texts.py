"""Text clean-up and encodings, for the service and its page-reading child processes.

Imports nothing large, so that a child process starts quickly.
"""

from __future__ import annotations

import codecs
import re

MAX_TEXT_CHARS = 2_000_000
HTML, PDF, TEXT = "html", "pdf", "text"
_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n{3,}")
# Python has more encodings: some need quadratic time (punycode), some do not encode text.
_ENCODINGS = re.compile(
    r"(utf-8(-sig)?|utf-16(-[bl]e)?|utf-32(-[bl]e)?|ascii|iso8859-\d+|cp\d+|koi8-[rut]|gb18030|gb2312"
    r"|gbk|big5(hkscs)?|shift_jis\w*|euc_\w+|iso2022_\w+|mac-\w+|tis-620|hz|johab)"
)


_MAX_CHARSET = 40


def tidy(text: str) -> str:
    """Returns a text with one kind of line end, few blank lines and no control characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    return _BLANK_LINES.sub("\n\n", _UNWANTED.sub("", text)).strip()


def encoding_of(charset: str) -> str:
    """Returns Python's name of the encoding that a server names; empty if it is not allowed."""
    if len(charset) > _MAX_CHARSET:
        # Python caches every name that is looked up, so long names would fill the memory.
        return ""
    try:
        name = codecs.lookup(charset).name
    except (LookupError, ValueError):
        return ""
    return name if _ENCODINGS.fullmatch(name) else ""
