"""The rule for names of agents, conversations, folders, files, archives, keys and projects.

It also applies to organizations. Such names appear in tables, prompts, paths (``FOLDER/FILE``) and
command lines. Blocks, tools and MCP servers have stricter rules, because their names
are identifiers.
"""

from __future__ import annotations

import unicodedata

from strata.shared.blank_text import BLANK, is_blank
from strata.shared.one_line import is_one_line

MAX_NAME_CHARS = 200
MAX_AGENT_NAME_CHARS = 128
"""Maximum number of characters of the name of an agent, and of the title of a conversation."""


def name_problems(name: str, *, most: int = MAX_NAME_CHARS) -> list[str]:
    """Returns the problems of a name, for field violations; none for an empty name.

    Args:
        name: The name.
        most: Maximum number of characters.
    """
    problems = []
    if len(name) > most:
        problems.append(f"has {len(name)} characters, at most {most} are allowed")
    if "/" in name or "\\" in name:
        problems.append("must not hold '/' or '\\'")
    if name in (".", ".."):
        # A client that exports files or passages to a folder would write elsewhere.
        problems.append("must not be '.' or '..'")
    if not is_one_line(name):
        problems.append("must be one line without control characters")
    elif name != name.strip():
        problems.append("must not begin or end with a blank")
    elif name and is_blank(name):
        problems.append(BLANK)
    return problems


def composed(name: str) -> str:
    """Returns a name in Unicode's composed form (NFC), so that equal looking names are equal.

    macOS writes the names of files in the decomposed form.
    """
    return unicodedata.normalize("NFC", name)
