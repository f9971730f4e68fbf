"""The shape of a call: the restrictions that a jailed process applies before the request."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from strata.shared.sandbox import Limits


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties that calls must share to be served by the same locked process.

    Contains no secrets.

    Attributes:
        memory_bytes: Address space of one process.
        cpu_seconds: CPU time of one process.
        processes: Number of processes and threads.
        disk_bytes: Size of the scratch folder.
        files: Number of entries in the scratch folder.
        packages: Package folder as the jail sees it; empty for none.
        folder: Device and inode of the package folder, so that a new folder of the same name
            differs.
        egress: Whether it has network access through a proxy.
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
        packages_status: os.stat_result | None = None,
        egress: bool = False,
    ) -> Shape:
        """Returns the shape of a call.

        Args:
            limits: Limits of the call.
            packages: Package folder as the jail sees it; empty for none.
            packages_status: File status of the package folder.
            egress: Whether the call has hosts.
        """
        return cls(
            limits.memory_bytes,
            limits.cpu_seconds,
            limits.processes,
            limits.disk_bytes,
            limits.files,
            packages,
            (packages_status.st_dev, packages_status.st_ino) if packages_status else (0, 0),
            egress,
        )

    def as_message(self, scratch: str) -> dict[str, Any]:
        """Returns the first message to the process.

        Args:
            scratch: Its scratch folder without namespaces; empty with namespaces.
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
