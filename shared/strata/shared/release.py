"""The release of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """Returns the release, such as ``1.4.0``; ``unreleased`` if Strata is not installed."""
    try:
        return version("strata-agents")
    except PackageNotFoundError:
        return "unreleased"
