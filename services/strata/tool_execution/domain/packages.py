"""Interface of the provider of Python packages for tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PackagesError(Exception):
    """Packages cannot be installed; the message is for the author of the requirements.

    Attributes:
        temporary: Whether a later attempt may succeed, since the requirements are not the cause.
    """

    def __init__(self, message: str, *, temporary: bool) -> None:
        super().__init__(message)
        self.temporary = temporary


class Packages(Protocol):
    """Provides folders with installed packages."""

    async def folder(self, requirements: Sequence[str]) -> str:
        """Returns the folder with the packages of these requirements; builds it if needed.

        Cancelling the call does not stop the build.

        Raises:
            PackagesError: The packages cannot be installed.
        """
        ...
