"""The structure of a system message: its elements and the lines of its lists."""

from __future__ import annotations

import re
from collections.abc import Sequence

from strata.shared import tag_escapes

# Every line of these elements has a meaning; other elements hold free text.
_LISTS = ("memory_metadata", "metadata", "file_limits")


def structure(text: str, labels: Sequence[str] = ()) -> list[str]:
    """Returns the tags of a system message in order, and the lines of its lists."""
    names = "|".join((*tag_escapes._TAGS, *labels))
    tags = re.compile(rf"<[ \t]*(/?)[ \t]*({names})(?=[\s/>]|\Z)", re.IGNORECASE)
    marks = [f"{slash}{name}" for slash, name in tags.findall(text)]
    for name in _LISTS:
        elements = re.findall(rf"<{name}>\n(.*?)\n</{name}>", text, re.DOTALL)
        marks += [f"{name}: {len(element.splitlines())} lines" for element in elements]
    return marks
