"""Labels of the members of a group in prompts and tool schemas.

The name and the description of an agent are free text. This module makes them safe for every text
that a model reads: one line, bounded, without characters that could end a quotation or begin a
tag. A tool refers to a member by its label. Labels are deterministic, so that every service maps
a label to the same member.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_LABEL_CHARS = 64
MAX_DESCRIPTION_CHARS = 300
_DESCRIPTIONS_CHARS = 4_000
# Only this many characters are read; longer texts could start with blanks only.
_READ_CHARS = 2_000
_NAMELESS = "agent"
_CUT = "..."
# Not allowed in a label, which is quoted and which the model repeats.
_NOT_IN_LABELS = str.maketrans(dict.fromkeys("<>\"'`\\", " "))
_ESCAPED = str.maketrans({"<": "&lt;", ">": "&gt;"})


def labels_of(names: Sequence[str]) -> tuple[str, ...]:
    """Returns a label for each of the members: one line of at most 64 characters, all different.

    Labels also differ when case is ignored.

    Args:
        names: Names of the members, in order.
    """
    labels: list[str] = []
    used: set[str] = set()
    for name in names:
        plain = _bounded(_one_line(name.translate(_NOT_IN_LABELS)), MAX_LABEL_CHARS) or _NAMELESS
        label, number = plain, 1
        while label.casefold() in used:
            number += 1
            suffix = f" ({number})"
            label = plain[: MAX_LABEL_CHARS - len(suffix)].rstrip() + suffix
        used.add(label.casefold())
        labels.append(label)
    return tuple(labels)


def speaker_name(name: str, agent_id: str) -> str:
    """Returns the name under which an agent's messages are shown to other agents.

    Names of agents may have characters that names of speakers may not, such as joined emoji. An
    agent whose name has no other character is called by its id: without a name its message would
    look like one of the user.

    Args:
        name: The name of the agent.
        agent_id: Its id.
    """
    printable = "".join(character for character in name if character.isprintable())
    return printable if printable.strip() else agent_id


def member_lines(names: Sequence[str], descriptions: Sequence[str]) -> tuple[str, ...]:
    """Returns the lines that introduce members in a prompt: label and description.

    Descriptions have at most 300 characters each and 4,000 together, so that a large group leaves
    space for the conversation.

    Args:
        names: Names of the members, in order.
        descriptions: Their descriptions, in the same order; may be empty.
    """
    most = min(MAX_DESCRIPTION_CHARS, _DESCRIPTIONS_CHARS // max(len(names), 1))
    return tuple(
        _line(label, _bounded(_one_line(description[:_READ_CHARS]), most).translate(_ESCAPED))
        for label, description in zip(labels_of(names), descriptions, strict=True)
    )


def _line(label: str, description: str) -> str:
    return f'"{label}": {description}' if description else f'"{label}"'


def position_of(label_or_id: str, agent_ids: Sequence[str], names: Sequence[str]) -> int | None:
    """Returns the position of the member that a label or id names; None if it names none.

    Args:
        label_or_id: The label or id that the model wrote; case and outer blanks are ignored.
        agent_ids: Ids of the members, in order.
        names: Their names.
    """
    folded = label_or_id.strip().casefold()
    for spellings in (labels_of(names), agent_ids):
        for position, spelling in enumerate(spellings):
            if spelling.casefold() == folded:
                return position
    return None


def _one_line(text: str) -> str:
    printable = (character if character.isprintable() else " " for character in text)
    return " ".join("".join(printable).split())


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - len(_CUT)].rstrip() + _CUT
