"""Escapes prompt tags in texts of the system message (docs/wire-format.md#escaping).

The prompt is plain text with Strata's own tags, so a value such as ``</value>`` would
end its block early. In every opening and closing tag of Strata, ``<`` becomes ``&lt;``. A text
that already has ``&lt;`` in front of such a tag gets one more level (``&amp;lt;``). All other
markup, ampersands and code stay unchanged, and `unescape` restores every text exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_TAGS = (
    "memory_blocks",
    "memory_metadata",
    "tool_usage_rules",
    "tool_rule",
    "directories",
    "directory",
    "file_limits",
    "file",
    "instructions",
    "description",
    "metadata",
    "warning",
    "value",
)


def escape(text: str, labels: Iterable[str] = ()) -> str:
    """Returns the text with all prompt tags escaped.

    Args:
        text: Any text.
        labels: Labels of all blocks of the agent, which are tags too.
    """
    if "<" not in text and "lt;" not in text:
        return text
    return _pattern(frozenset(labels)).sub(_raise_level, text)


def unescape(text: str, labels: Iterable[str] = ()) -> str:
    """Returns the original of a text made by `escape` with the same labels."""
    if "lt;" not in text:
        return text
    return _pattern(frozenset(labels)).sub(_lower_level, text)


@lru_cache(maxsize=256)
def _pattern(labels: frozenset[str]) -> re.Pattern[str]:
    names = "|".join(re.escape(name) for name in sorted({*_TAGS, *labels}, key=len, reverse=True))
    # Bounded, because two unbounded runs in a row would take quadratic time.
    blanks = r"[ \t]{0,8}"
    tag = rf"{blanks}/?{blanks}(?i:{names})(?:[\s/>]|\Z)"
    return re.compile(rf"(?:<|&(?:amp;)*lt;)(?={tag})")


def _raise_level(match: re.Match[str]) -> str:
    tag = match[0]
    return "&lt;" if tag == "<" else f"&amp;{tag[1:]}"


def _lower_level(match: re.Match[str]) -> str:
    tag = match[0]
    if tag == "<":
        return tag
    return "<" if tag == "&lt;" else f"&{tag[5:]}"
