"""Options of lists: ``--add-X`` and ``--remove-X`` change a list, ``--Xs A,B`` replaces it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import typer

from strata.cli.failures import UsageError

AddToolOption = Annotated[
    list[str] | None,
    typer.Option(
        "--add-tool",
        "--tool",
        metavar="NAME",
        help="Add a tool, or with 'SERVER__*' all tools of an MCP server; may be repeated.",
    ),
]
RemoveToolOption = Annotated[
    list[str] | None,
    typer.Option("--remove-tool", metavar="NAME", help="Remove a tool; may be repeated."),
]
ToolsOption = Annotated[
    str | None,
    typer.Option("--tools", metavar="A,B", help='All its tools, in this order; "" for none.'),
]
AddTagOption = Annotated[
    list[str] | None,
    typer.Option("--add-tag", "--tag", metavar="TAG", help="Add a tag; may be repeated."),
]
RemoveTagOption = Annotated[
    list[str] | None,
    typer.Option("--remove-tag", metavar="TAG", help="Remove a tag; may be repeated."),
]
TagsOption = Annotated[
    str | None, typer.Option("--tags", metavar="A,B", help='All its tags; "" for none.')
]


@dataclass(frozen=True, slots=True)
class ListChange:
    """A change of one list.

    Attributes:
        name: Singular of the list, as in the options: "tool".
        add: Entries to add.
        remove: Entries to remove.
        whole: The whole new list, separated by commas; None to keep the present one.
    """

    name: str
    add: list[str] | None = None
    remove: list[str] | None = None
    whole: str | None = None

    def __post_init__(self) -> None:
        if self.whole is not None and (self.add or self.remove):
            raise UsageError(
                f"--{self.name}s is the whole list: leave out --add-{self.name} and"
                f" --remove-{self.name}."
            )
        if both := sorted({*(self.add or ())} & {*(self.remove or ())}):
            raise UsageError(f"Both added and removed: {', '.join(both)}.")

    def __bool__(self) -> bool:
        return bool(self.add or self.remove or self.whole is not None)

    @property
    def entries(self) -> list[str]:
        """The whole list if there is one, else the entries to add; each once, in order."""
        if self.whole is None:
            return list(dict.fromkeys(self.add or ()))
        return list(dict.fromkeys(filter(None, map(str.strip, self.whole.split(",")))))

    def over(self, present: Iterable[str]) -> list[str]:
        """Returns the list after the change.

        Args:
            present: The present entries.

        Raises:
            UsageError: An entry to remove is not among them.
        """
        if self.whole is not None:
            return self.entries
        before = list(present)
        if missing := [entry for entry in self.remove or () if entry not in before]:
            listed = ", ".join(before) or "none"
            raise UsageError(
                f"There is no {self.name} {', '.join(missing)} to remove; present: {listed}."
            )
        remaining = [entry for entry in before if entry not in (self.remove or ())]
        return list(dict.fromkeys([*remaining, *self.entries]))
