"""Partitions: the databases on which the projects of an installation are placed.

A project is placed on one partition when it is created, and stays there. The name of its partition
is a claim of every token of the project, so that services need no look-up.
"""

from __future__ import annotations

import re

from strata.protocol.errors import FailedPreconditionError, Reason

DEFAULT_PARTITION = "default"
"""The partition of the setting `database_url`, on which projects are by default."""

ANY_PARTITION = ""
"""Stands for all partitions: what the gateway keeps of a project is in one database."""

# Part of the name of an environment variable and of a collection: no underscore, no hyphen.
_NAME = re.compile(r"[a-z][a-z0-9]{0,31}")
NAME_RULE = "must be a lower-case letter, followed by up to 31 lower-case letters and digits"
"""The problem of a name that is not valid for a partition."""


def is_partition_name(name: str) -> bool:
    """Returns whether a text can be the name of a partition."""
    return _NAME.fullmatch(name) is not None


def not_configured(partition: str) -> FailedPreconditionError:
    """Returns the error of a call for a partition that a service has no database for."""
    return FailedPreconditionError(
        f"The project is on the partition {partition!r}, for which this service has no database:"
        " its settings must name it.",
        reason=Reason.PARTITION_NOT_CONFIGURED,
        metadata={"partition": partition},
    )
