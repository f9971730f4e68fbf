"""The rule for names that people give: of agents, conversations, folders, files, archives and keys.

It also holds for names of projects and organisations. Names stand in tables, prompts, paths
(``FOLDER/FILE``) and command lines. Blocks, tools and MCP servers have narrower rules of their own,
since they are identifiers.
"""

from __future__ import annotations

from strata.shared.one_line import is_one_line

MAX_NAME_CHARS = 200


def name_problems(name: str, *, most: int = MAX_NAME_CHARS) -> list[str]:
    """Returns what is wrong with a name, for field violations; nothing for an empty one.

    Args:
        name: The name.
        most: Most characters.
    """
    problems = []
    if len(name) > most:
        problems.append(f"has {len(name)} characters, at most {most} are allowed")
    if "/" in name or "\\" in name:
        problems.append("must not hold '/' or '\\'")
    if not is_one_line(name):
        problems.append("must be one line without control characters")
    elif name != name.strip():
        problems.append("must not begin or end with a blank")
    return problems
