"""Address and key of the gateway: from options, then the environment, then the data folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strata.cli.failures import UsageError
from strata.client import target
from strata.client.settings import ClientSettings
from strata.client.target import Choice, OptionNames, Target, folder_of
from strata.protocol.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["Choice", "Target", "find_organization_target", "find_target", "folder_of"]

_OPTIONS = OptionNames("--address", "--api-key")
_ORGANIZATION_OPTIONS = OptionNames("--address", "--organization-key")


def find_target(choice: Choice, settings: ClientSettings) -> Target:
    """Returns address and key of the gateway; see `strata.client.target`.

    Raises:
        UsageError: The address is not ``host:port``, or missing although TLS is asked for, the key
            is malformed, or a file of the TLS settings cannot be used.
        StrataError: No gateway can be found, or no key for it.
    """
    with _usage_errors():
        return _usable(target.find_target(choice, settings, _OPTIONS))


def find_organization_target(
    choice: Choice, settings: ClientSettings, organization_key: str = ""
) -> Target:
    """Returns address and organization key of the gateway.

    Raises:
        UsageError: As for `find_target`.
        StrataError: No gateway is known, or no organization key for it.
    """
    with _usage_errors():
        return _usable(
            target.find_organization_target(
                choice, settings, _ORGANIZATION_OPTIONS, organization_key
            )
        )


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except (InvalidArgumentError, FailedPreconditionError) as error:
        raise UsageError(error.message) from error


def _usable(target: Target) -> Target:
    if target.tls is not None:
        target.tls.credentials()
    return target
