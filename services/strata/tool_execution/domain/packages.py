"""What is asked of those who provide the packages of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PackagesError(Exception):
    """Packages cannot be had; the message is for who wrote the requirements.

    Attributes:
        temporary: It may go well another time: the requirements are not to blame.
    """

    def __init__(self, message: str, *, temporary: bool) -> None:
        super().__init__(message)
        self.temporary = temporary


class Packages(Protocol):
    """Provides folders with packages."""

    async def folder(self, requirements: Sequence[str]) -> str:
        """Returns the folder with the packages that meet these requirements; builds it if need be.

        Who gives up waiting does not end the building.

        Raises:
            PackagesError: They cannot be had.
        """
        ...
