"""What a jailed process must know to lock itself in, before it knows its call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from strata.tool_execution.domain.sandbox import Limits


@dataclass(frozen=True, slots=True)
class Shape:
    """What is alike in calls that one locked process can serve; nothing of it is a secret.

    Attributes:
        memory_bytes: Address space of one process.
        cpu_seconds: Processor time of one process.
        processes: Processes and threads.
        disk_bytes: Of its scratch folder.
        files: Entries of its scratch folder.
        packages: The folder of its packages as the jail is told of it; empty for none.
        folder: Device and inode of that: one that is made anew is another, under any name.
        egress: Whether it has a network with the way to a proxy.
    """

    memory_bytes: int
    cpu_seconds: int
    processes: int
    disk_bytes: int
    files: int
    packages: str = ""
    folder: tuple[int, int] = (0, 0)
    egress: bool = False

    @classmethod
    def of(
        cls,
        limits: Limits,
        *,
        packages: str = "",
        found: os.stat_result | None = None,
        egress: bool = False,
    ) -> Shape:
        """Returns the shape of a call.

        Args:
            limits: Those of the call.
            packages: The folder of its packages as the jail is told of it; empty for none.
            found: That folder.
            egress: Whether the call has hosts.
        """
        return cls(
            limits.memory_bytes,
            limits.cpu_seconds,
            limits.processes,
            limits.disk_bytes,
            limits.files,
            packages,
            (found.st_dev, found.st_ino) if found else (0, 0),
            egress,
        )

    def as_message(self, scratch: str) -> dict[str, Any]:
        """Returns what the process is told.

        Args:
            scratch: Its scratch folder where no namespace gives it one; empty otherwise.
        """
        return {
            "limits": {
                "memory_bytes": self.memory_bytes,
                "cpu_seconds": self.cpu_seconds,
                "processes": self.processes,
                "disk_bytes": self.disk_bytes,
                "files": self.files,
            },
            "packages": self.packages,
            "egress": self.egress,
            "scratch": scratch,
        }
