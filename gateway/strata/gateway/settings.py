"""What the gateway can be told from outside: ``STRATA_GATEWAY_…``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from strata.shared.auth import public_key_of
from strata.shared.settings import MIB, RoomSettings, ServerLimits, room_config

DEFAULT_PORT = 7600


class EdgeLimits(ServerLimits):
    """The limits of a server that strangers talk to."""

    max_message_bytes: int = Field(
        default=4 * MIB, gt=0, description="Largest request and response of a client."
    )
    max_in_flight_streams: int = Field(
        default=1024, gt=0, description="Followed runs and other streams at once."
    )


class GatewaySettings(RoomSettings):
    """Settings of the gateway; times in seconds.

    Listens on 127.0.0.1:7600 unless told otherwise.
    """

    model_config = room_config("gateway")

    port: int = Field(
        default=DEFAULT_PORT, ge=0, le=65535, description="Port; 0 lets the system choose."
    )
    limits: EdgeLimits = Field(default_factory=EdgeLimits, description="Server limits.")
    token_private_key: str = Field(
        default="", repr=False, description="PEM private key that signs the internal tokens."
    )
    token_private_key_file: Path | None = Field(
        default=None, description="File to read the private key from instead."
    )
    key_pepper: str = Field(
        default="",
        repr=False,
        description="Secret the hashes of API keys depend on; changing it voids all keys.",
    )
    key_pepper_file: Path | None = Field(
        default=None, description="File to read the pepper from instead."
    )
    key_cache_s: float = Field(
        default=5.0, ge=0, description="How long a revoked key may still work on a replica."
    )
    calls_per_second: float = Field(
        default=200.0, ge=0, description="Calls of one key per second and replica; 0: no limit."
    )
    call_burst: int = Field(default=400, gt=0, description="Calls of one key at once.")
    open_runs_per_project: int = Field(
        default=500, gt=0, description="Runs of a project that are queued or active."
    )
    runs_at_once: int = Field(
        default=1000, gt=0, description="Runs carried out by one replica at once."
    )
    run_timeout_s: float = Field(
        default=840.0,
        gt=0,
        description="Longest run from its first dispatch; less than stream_timeout_s.",
    )
    lease_s: float = Field(
        default=10.0, gt=0, description="After this without a heartbeat a run is taken over."
    )
    only_replica: bool = Field(
        default=False,
        description="No other gateway runs: what a dead one held is taken over at start, at once.",
    )
    heartbeat_s: float = Field(default=3.0, gt=0, description="Pause between heartbeats.")
    poll_s: float = Field(
        default=1.0, gt=0, description="Pause between two looks for runs that nobody holds."
    )
    max_attempts: int = Field(
        default=8, gt=0, description="Dispatches of a run before it is given up."
    )
    agent_cache_s: float = Field(
        default=60.0, ge=0, description="How long an agent is known to exist without asking."
    )
    chain_limit: int = Field(
        default=8,
        gt=0,
        description="Runs, one after the other, that agents may start from one message by sending"
        " messages to each other.",
    )
    pool_size: int = Field(default=10, gt=0, description="Connections of the service role.")
    worker_pool_size: int = Field(default=3, gt=0, description="Connections of the worker role.")

    def private_key(self) -> str:
        """Returns the PEM text to sign internal tokens with.

        Raises:
            ValueError: Neither the key nor a readable file with it is configured.
        """
        return _secret(self.token_private_key, self.token_private_key_file, "token_private_key")

    def pepper(self) -> str:
        """Returns the pepper of the API keys.

        Raises:
            ValueError: Neither the pepper nor a readable file with it is configured.
        """
        return _secret(self.key_pepper, self.key_pepper_file, "key_pepper")

    def public_keys(self) -> str:
        """Returns the keys to verify internal tokens with; by default those it signs with."""
        if self.token_public_keys or self.token_public_keys_file is not None:
            return super().public_keys()
        return public_key_of(self.private_key())


def _secret(value: str, file: Path | None, name: str) -> str:
    if value:
        return value
    if file is None:
        raise ValueError(f"set STRATA_GATEWAY_{name.upper()} or STRATA_GATEWAY_{name.upper()}_FILE")
    return file.read_text(encoding="ascii").strip()
