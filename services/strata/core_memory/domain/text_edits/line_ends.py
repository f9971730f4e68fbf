"""The line ends of a block whose lines end in CR LF, as texts from Windows do.

Models read both line ends as the same and write line feeds. So an edit of such a block is applied
with line feeds, and the result gets its line ends back.
"""

from __future__ import annotations

from strata.core_memory.domain.text_edits.verbs import (
    Append,
    Insert,
    Replace,
    Rethink,
    StringReplace,
    TextEdit,
)


def ends_in_crlf(text: str) -> bool:
    """Returns whether every line feed of a text, at least one, follows a carriage return."""
    return "\r\n" in text and text.count("\r\n") == text.count("\n")


def with_line_feeds(text: str) -> str:
    """Returns the text with line feeds only."""
    return text.replace("\r\n", "\n")


def with_crlf(text: str) -> str:
    """Returns a text that `with_line_feeds` made with CR LF."""
    return text.replace("\n", "\r\n")


def edit_with_line_feeds(edit: TextEdit) -> TextEdit:
    """Returns the edit with texts that have line feeds only."""
    match edit:
        case Append(content):
            return Append(with_line_feeds(content))
        case Replace(old, new):
            return Replace(with_line_feeds(old), with_line_feeds(new))
        case StringReplace(old, new):
            return StringReplace(with_line_feeds(old), with_line_feeds(new))
        case Insert(new, line):
            return Insert(with_line_feeds(new), line)
        case Rethink(new):
            return Rethink(with_line_feeds(new))
