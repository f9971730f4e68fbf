"""Keeps the log messages of gRPC out of the terminal's output."""

from __future__ import annotations

import os

from pydantic_settings import BaseSettings, SettingsConfigDict


class _GrpcSettings(BaseSettings):
    """The environment variable that gRPC's C core reads."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    grpc_verbosity: str = ""


def quieten_grpc() -> None:
    """Turns off gRPC's own messages about broken connections; Strata prints its own.

    It must be called before `grpc` is imported. A level that the person set is kept.
    """
    if not _GrpcSettings().grpc_verbosity:
        # The C core reads the process environment; `os.putenv` changes it without `os.environ`.
        os.putenv("GRPC_VERBOSITY", "NONE")
