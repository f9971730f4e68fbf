"""Writes docs/configuration.md from the settings classes.

    python docs/generate_configuration.py

A test compares the file with what this makes, so a setting cannot be added undocumented.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from pydantic import AliasChoices, BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from strata.client.settings import PREFIX, ClientSettings
from strata.shared.search.reranking.settings import RerankingServiceSettings
from strata.shared.settings import EnvironmentSettings, ServiceSettings

REPOSITORY = Path(__file__).resolve().parents[1]
TARGET = REPOSITORY / "docs" / "configuration.md"
_ROOTS = ("shared", "services", "gateway", "standalone", "clients/cli", "clients/python")
# The prefix in tables of settings that several services have.
_ANY_SERVICE = "STRATA_<SERVICE>_"
# The base of the settings of archival and recall.
_SEARCHING = RerankingServiceSettings
_ATTRIBUTE = re.compile(
    r"^    (?P<name>\w+): (?P<text>.+?)(?=^    \w+: |\Z)", re.DOTALL | re.MULTILINE
)

_INTRODUCTION = """\
# Configuration

<!-- Written by docs/generate_configuration.py; a test fails when it is out of date. -->

Everything is set by environment variables, read once at start. Those of a service begin with
`STRATA_` and the name of the service: `GATEWAY`, `AGENT_LOOP`, `CORE_MEMORY`, `RECALL`, `ARCHIVAL`,
`TOOL_EXECUTION` and `TOOL_RUNNER`. Two
underscores lead into a group or a table
(`STRATA_RECALL_LIMITS__MAX_IN_FLIGHT_UNARY=512`,
`STRATA_AGENT_LOOP_TARGETS__RECALL=dns:///recall:7603`); lists are JSON. Times are in seconds, sizes
in bytes. "none" stands for empty or unset.

`strata up` fills in addresses, databases and keys for the services it starts; in a cluster they
come from the manifests ([guide](guides/kubernetes.md)). Settings of model providers work in both.

At its start a service logs a warning with the names of variables that begin with its prefix and
that no setting reads: they are misspelled, or of another release.
"""


def document() -> str:
    """Returns the text of the file."""
    parts = [_INTRODUCTION]
    services = [cls for cls in settings_classes() if issubclass(cls, ServiceSettings)]
    others = [
        cls
        for cls in settings_classes()
        if cls is not EnvironmentSettings and not issubclass(cls, ServiceSettings)
    ]
    parts.append("## Every service\n\n`<SERVICE>` is the name of the service.\n")
    parts.append(_table(_rows(ServiceSettings, _ANY_SERVICE)))
    parts.append("## archival and recall\n\nSettings of the services that search.\n")
    parts.append(_table(_own_rows(_SEARCHING, ServiceSettings)))
    parts.extend(_elements(_SEARCHING))
    for cls in sorted(services, key=lambda cls: cls.__module__):
        if cls is ServiceSettings:
            continue
        parts.append(f"## {_service_of(cls)}\n\n{_first_sentence(cls)}\n")
        base = _SEARCHING if issubclass(cls, _SEARCHING) else ServiceSettings
        parts.append(_table(_own_rows(cls, base)))
        parts.extend(_elements(cls, base))
    for other in sorted(others, key=lambda cls: cls.__module__):
        parts.append(f"## {_title(other)}\n\n{_first_sentence(other)}\n")
        parts.append(_table(_rows(other, _prefix(other))))
    parts.append(f"## Python programs\n\n{_first_sentence(ClientSettings)}\n")
    parts.append(_table(_client_rows()))
    return "\n".join(parts)


def settings_classes() -> list[type[BaseSettings]]:
    """Returns every settings class that a `settings.py` of the source roots defines."""
    classes: list[type[BaseSettings]] = []
    for root in _ROOTS:
        for path in sorted((REPOSITORY / root).glob("strata/**/settings.py")):
            name = ".".join(path.relative_to(REPOSITORY / root).with_suffix("").parts)
            module = importlib.import_module(name)
            classes += [
                value
                for value in vars(module).values()
                if isinstance(value, type)
                and issubclass(value, BaseSettings)
                and value.__module__ == name
            ]
    return classes


Row = tuple[str, str, str]


def _rows(cls: type[BaseModel], prefix: str) -> Iterator[Row]:
    texts = _attributes(cls)
    for name, field in cls.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _rows(field.annotation, f"{prefix}{name.upper()}__")
            continue
        yield _variable(name, field, prefix), _default(field), field.description or texts[name]


def _client_rows() -> Iterator[Row]:
    """The settings of the Python client, which has no pydantic."""
    for field in dataclasses.fields(ClientSettings):
        variable = f"{PREFIX}{field.name.upper()}"
        yield variable, _shown(field.default), field.metadata["description"]


def _own_rows(cls: type[ServiceSettings], base: type[ServiceSettings]) -> Iterator[Row]:
    """The settings that the base class lacks, and those with another default."""
    prefix = _ANY_SERVICE if cls is _SEARCHING else _prefix(cls)
    common = {row[0]: row for row in _rows(base, prefix)}
    for row in _rows(cls, prefix):
        if common.get(row[0]) != row:
            yield row


def _elements(cls: type[BaseSettings], base: type[BaseSettings] = ServiceSettings) -> Iterator[str]:
    """Tables of what the elements of JSON lists hold, of the settings that the base class lacks."""
    for name, field in cls.model_fields.items():
        if name in base.model_fields:
            continue
        for inner in typing.get_args(field.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                prefix = _ANY_SERVICE if cls is _SEARCHING else _prefix(cls)
                variable = _variable(name, field, prefix)
                rows = [
                    (key, "required" if field.is_required() else _default(field), field.description)
                    for key, field in inner.model_fields.items()
                ]
                yield f"Each element of `{variable}`:\n"
                yield _table(((key, default, text or "") for key, default, text in rows), "key")


def _variable(name: str, field: FieldInfo, prefix: str) -> str:
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return str(alias.choices[0])
    return f"{prefix}{name.upper()}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    return _shown(value)


def _shown(value: object) -> str:
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`"


def _attributes(cls: type[BaseModel]) -> dict[str, str]:
    """Descriptions from the docstring, for fields without one of their own."""
    _, _, section = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")
    matches = _ATTRIBUTE.finditer(section)
    return {match["name"]: " ".join(match["text"].split()) for match in matches}


def _table(rows: typing.Iterable[Row], first: str = "variable") -> str:
    lines = [f"| {first} | default | meaning |", "|---|---|---|"]
    for variable, default, text in rows:
        lines.append(f"| `{variable}` | {default} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def _prefix(cls: type[BaseSettings]) -> str:
    return str(cls.model_config.get("env_prefix", ""))


def _service_of(cls: type[BaseSettings]) -> str:
    return str(cls.model_config["env_prefix"]).removeprefix("STRATA_").rstrip("_").lower()


def _title(cls: type[BaseSettings]) -> str:
    return {
        "CliSettings": "The command line",
        "LocalDemoSettings": "The local demo model",
        "TraceSettings": "Traces",
    }.get(cls.__name__, cls.__name__)


def _first_sentence(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="utf-8")
