"""Where the gateway is, and with which key: options, then environment, then data folder."""

from __future__ import annotations

from strata.cli.failures import UsageError
from strata.cli.settings import CliSettings
from strata.client import target
from strata.client.target import Choice, Target, Words, folder_of
from strata.shared.errors import InvalidArgumentError

__all__ = ["Choice", "Target", "find_target", "folder_of"]

_WORDS = Words("--address", "--api-key")


def find_target(choice: Choice, settings: CliSettings) -> Target:
    """Returns the gateway to talk to, as `strata.client.target` does.

    Raises:
        UsageError: The address is not ``host:port``.
        StrataError: No gateway can be found, or no key for it.
    """
    try:
        return target.find_target(choice, settings, _WORDS)
    except InvalidArgumentError as error:
        raise UsageError(error.message) from error
