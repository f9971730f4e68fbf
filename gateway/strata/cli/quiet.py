"""Keeps libraries from writing into the person's terminal."""

from __future__ import annotations

import os

from pydantic_settings import BaseSettings, SettingsConfigDict


class _GrpcSettings(BaseSettings):
    """The variable that gRPC's C core itself reads."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    grpc_verbosity: str = ""


def quieten_grpc() -> None:
    """Silences gRPC about connections that break, which is ours to tell.

    It must be called before `grpc` is imported; a level that the person set stays.
    """
    if not _GrpcSettings().grpc_verbosity:
        # The C core asks the C library, which `os.putenv` tells.
        os.putenv("GRPC_VERBOSITY", "NONE")
