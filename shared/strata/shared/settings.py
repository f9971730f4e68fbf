"""Settings that all services share, read from environment variables.

A service subclasses `ServiceSettings` with its own prefix; its `main` builds the object once
and passes it on::

    class RecallSettings(ServiceSettings):
        model_config = settings_config("recall")

``STRATA_RECALL_PORT=7603``, ``STRATA_RECALL_LIMITS__MAX_IN_FLIGHT_UNARY=512`` and
``STRATA_RECALL_TARGETS__CORE_MEMORY=dns:///core-memory:7602`` then set its fields.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettingError

from strata.protocol.errors import FieldViolation, WrongSettingError
from strata.shared.logs import LogFormat, LogLevel, get_logger
from strata.shared.partitions import DEFAULT_PARTITION, NAME_RULE, is_partition_name
from strata.shared.tls import ServerTls

KIB = 1024
MIB = 1024 * KIB

_log = get_logger(__name__)


def settings_config(service: str) -> SettingsConfigDict:
    """Returns the model configuration of a service's settings: prefix ``STRATA_<SERVICE>_``."""
    return SettingsConfigDict(
        env_prefix=f"STRATA_{service.upper()}_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        # Keywords of a constructor; `unknown_variables` finds variables that no setting reads.
        extra="forbid",
        # The values include keys and passwords, and errors are logged.
        hide_input_in_errors=True,
    )


class EnvironmentSettings(BaseSettings):
    """Settings from environment variables; an empty variable counts as unset.

    Raises:
        WrongSettingError: A value is not valid for its setting.
    """

    model_config = SettingsConfigDict(env_ignore_empty=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            violations = list(_violations(type(self), error))
        except UnreadableSettingError as error:
            violations = [_unreadable(type(self), error)]
        else:
            return
        # Raised outside of the handlers, because the original errors print the values.
        problems = "; ".join(
            violation.description
            if violation.field in violation.description
            else f"{violation.field}: {violation.description}"
            for violation in violations
        )
        raise WrongSettingError(f"A setting is wrong. {problems}.", violations=violations)


def _violations(
    settings: type[EnvironmentSettings], error: ValidationError
) -> Iterator[FieldViolation]:
    for problem in error.errors(include_input=False, include_url=False):
        location = [str(part) for part in problem["loc"]]
        description = problem["msg"].removeprefix("Value error, ")
        # An error about several settings names them in its message only.
        words = re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", description)
        fields = [word for word in words if word in settings.model_fields]
        for name in fields:
            description = re.sub(rf"\b{name}\b", _variable(settings, [name]), description)
        yield FieldViolation(_variable(settings, location or fields[:1]), description)


def _unreadable(
    settings: type[EnvironmentSettings], error: UnreadableSettingError
) -> FieldViolation:
    # This error has no attribute for the field.
    match = re.search(r'field "(\w+)"', str(error))
    name = _variable(settings, [match[1]] if match else [])
    return FieldViolation(name, "must be JSON")


def _variable(settings: type[EnvironmentSettings], location: list[str]) -> str:
    """Returns the environment variable of a setting; the prefix for an error about all settings.

    For a field with an alias, the location is the alias, which is the variable's name.
    """
    prefix = str(settings.model_config.get("env_prefix", ""))
    if not location:
        return f"{prefix}…"
    name = "__".join(location).upper()
    return f"{prefix}{name}" if location[0] in settings.model_fields else name


def unknown_variables(
    settings: type[BaseSettings], environment: Iterable[str] | None = None
) -> list[str]:
    """Returns the variables with the prefix of a settings class that none of its settings reads.

    Such a variable is misspelled, or its setting was renamed or removed.

    Args:
        settings: The settings class.
        environment: Names of variables; by default the variables of this process.
    """
    prefix = str(settings.model_config["env_prefix"]).upper()
    names = os.environ if environment is None else environment
    known_names: set[str] = set()
    for name, field in settings.model_fields.items():
        alias = field.validation_alias
        known_names.add(f"{prefix}{name}".upper())
        known_names.update(map(str, alias.choices) if isinstance(alias, AliasChoices) else ())
    # Keys of a group are checked by its model; keys of a table are free.
    groups = tuple(f"{name}__" for name in known_names)
    return sorted(
        name
        for name in names
        if name.upper().startswith(prefix)
        and name.upper() not in known_names
        and not name.upper().startswith(groups)
    )


def warn_about_unknown_variables(settings: type[BaseSettings]) -> None:
    """Logs one warning with the names of `unknown_variables`, if there are any."""
    if names := unknown_variables(settings):
        _log.warning("unknown settings are ignored", variables=names)


class ServerLimits(BaseModel):
    """Limits of a server beyond which it refuses calls."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_message_bytes: int = Field(
        default=16 * MIB, gt=0, description="Largest request and response; 4 MiB at the edge."
    )
    max_in_flight_unary: int = Field(
        default=256, gt=0, description="Unary calls at once before load is shed."
    )
    max_in_flight_streams: int = Field(
        default=256, gt=0, description="Streaming calls at once before load is shed."
    )
    project_share: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="Share of these calls, and of these streams, that one project may have at once;"
        " the rest is kept for other projects.",
    )


class RunServerLimits(ServerLimits):
    """Limits of a server that has a stream for each run, most of which wait for something else."""

    max_in_flight_streams: int = Field(
        default=1024,
        gt=0,
        description="Streaming calls at once before load is shed: turns, or calls of tools. Not"
        " less than the concurrent runs of a gateway.",
    )


class ServiceSettings(EnvironmentSettings):
    """Fields that all services share."""

    model_config = settings_config("service")

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on, or unix:/path for a unix socket.",
    )
    port: int = Field(default=0, ge=0, le=65535, description="Port; 0 lets the system choose.")
    reuse_port: bool = Field(
        default=False, description="Let several processes listen on the port (SO_REUSEPORT)."
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port for metrics in the format of Prometheus (`/metrics`, HTTP without TLS and"
        " without keys); 0 lets the system choose. Unset means no metrics.",
    )
    metrics_host: str = Field(
        default="",
        description="Address of the metrics port. Unset means host, and 127.0.0.1 if that is a unix"
        " socket.",
    )
    reflection: bool = Field(default=True, description="Serve gRPC reflection.")
    database_url: str = Field(
        default="",
        repr=False,
        description="PostgreSQL URL of the service's service role; all URLs of databases may have"
        " options of libpq, such as `?sslmode=verify-full`.",
    )
    worker_database_url: str = Field(
        default="", repr=False, description="PostgreSQL URL of the service's worker role."
    )
    partition_database_urls: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="PostgreSQL URLs of the service role on further partitions, by the name of the"
        " partition: JSON, or one variable each, such as …__P1. The partition `default` is"
        " database_url.",
    )
    partition_worker_database_urls: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="PostgreSQL URLs of the worker role on further partitions, in the same form.",
    )
    pool_size: int = Field(
        default=10,
        gt=0,
        description="Maximum number of connections to PostgreSQL with the service role.",
    )
    prepared_statements: int = Field(
        default=200,
        ge=0,
        description="Statements that a connection to PostgreSQL keeps prepared; 0 behind a pooler "
        "in transaction mode that does not keep track of them.",
    )
    token_public_keys: str = Field(
        default="",
        repr=False,
        description="PEM public keys that internal tokens are verified with, one or several.",
    )
    token_public_keys_file: Path | None = Field(
        default=None, description="File to read the public keys from instead."
    )
    targets: dict[str, str] = Field(
        default_factory=dict,
        description="Service name to gRPC target, such as dns:///recall:7603.",
    )
    limits: ServerLimits = Field(default_factory=ServerLimits, description="Server limits.")
    stream_timeout_s: float = Field(
        default=900.0,
        gt=0,
        description="Maximum duration of a stream, such as a run, in seconds; also the limit of "
        "outgoing ones. Calls on a connection that is replaced get a minute more to "
        "end.",
    )
    drain_s: float = Field(
        default=5.0, ge=0, description="Pause from NOT_SERVING to the refusal of calls, seconds."
    )
    grace_s: float = Field(
        default=30.0, ge=0, description="Time for running calls to end at shutdown, seconds."
    )
    log_level: LogLevel = Field(default="INFO", description="Lowest level that is logged.")
    log_format: LogFormat = Field(default="json", description="Form of the logs.")
    access_log: bool = Field(
        default=False, description="Log successful calls at INFO instead of DEBUG."
    )

    _partition: str = PrivateAttr(DEFAULT_PARTITION)

    @model_validator(mode="after")
    def _partitions_are_whole(self) -> Self:
        urls, worker_urls = self.partition_database_urls, self.partition_worker_database_urls
        for name in (*urls, *worker_urls):
            if name == DEFAULT_PARTITION or not is_partition_name(name):
                raise ValueError(
                    f"partition_database_urls: a name {NAME_RULE}, and not {DEFAULT_PARTITION!r}"
                )
        if worker_urls and worker_urls.keys() != urls.keys():
            raise ValueError(
                "partition_database_urls and partition_worker_database_urls must name the same"
                " partitions"
            )
        if len({self.database_url, *urls.values()}) <= len(urls):
            raise ValueError(
                "database_url and partition_database_urls must be URLs of different databases"
            )
        return self

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the partitions, first the partition of `database_url`."""
        return (DEFAULT_PARTITION, *self.partition_database_urls)

    @property
    def partition(self) -> str:
        """The partition that `database_url` is of."""
        return self._partition

    def of_partition(self, name: str) -> Self:
        """Returns the settings for one of the partitions, with its URLs as the only ones.

        Raises:
            KeyError: There is no such partition.
        """
        if name == DEFAULT_PARTITION:
            urls = (self.database_url, self.worker_database_url)
        else:
            worker_url = self.partition_worker_database_urls.get(name, "")
            urls = (self.partition_database_urls[name], worker_url)
        settings = self.model_copy(
            update={
                "database_url": urls[0],
                "worker_database_url": urls[1],
                "partition_database_urls": {},
                "partition_worker_database_urls": {},
            }
        )
        settings._partition = name  # noqa: SLF001 - of the same class
        return settings

    @property
    def tls(self) -> ServerTls | None:
        """The TLS files of the server; None for no TLS."""
        return None

    @property
    def tcp_host(self) -> str:
        """The address for further ports: `host`, and 127.0.0.1 if that is a unix socket."""
        return "127.0.0.1" if self.host.startswith("unix:") else self.host

    @property
    def internal_address(self) -> str:
        """A second address to listen on, always without TLS; empty for none."""
        return ""

    def public_keys(self) -> str:
        """Returns the PEM texts to verify internal tokens with.

        Raises:
            ValueError: Neither the keys nor a readable file with them is configured.
        """
        if self.token_public_keys:
            return self.token_public_keys
        if self.token_public_keys_file is None:
            raise ValueError("set token_public_keys or token_public_keys_file")
        return self.token_public_keys_file.read_text(encoding="ascii")
