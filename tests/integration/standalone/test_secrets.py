"""Starts on data folders whose secrets were changed or lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from strata.cli.failures import reported_error
from strata.protocol.errors import FailedPreconditionError, Reason, StrataError
from strata.standalone.compose.local import LocalOptions, open_local
from strata.standalone.data_folder import DataFolder

pytestmark = pytest.mark.child_process

_PASSWORD = "secrets/postgres-recall"
_WORKER_PASSWORD = "secrets/postgres-gateway-worker"
_PEPPER = "secrets/key-pepper"
_SUPERUSER_PASSWORD = "postgres/superuser.password"


def _cut(path: Path) -> None:
    text = path.read_text()
    path.write_text(text[: len(text) // 2])


def _replace_by_other_text(path: Path) -> None:
    path.write_text("x" * 43)


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _slow(*values: object) -> object:
    """A case that is left to `make test-slow`: each starts the engines."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def used(open_folder_of_module: Path) -> Path:
    """A data folder on which Strata has run."""
    path = open_folder_of_module / "data"
    await _open(path)
    return path


async def _open(path: Path) -> dict[str, str]:
    """Starts everything but the services on a data folder, and returns its secrets."""
    folder = DataFolder(path)
    folder.open()
    try:
        async with AsyncExitStack() as stack:
            local = await open_local(folder, LocalOptions(port=0, split=True), stack)
            for database in local.storage.databases.values():
                for url in (database.service_url, database.worker_url):
                    await (await asyncpg.connect(url)).close()
            return {file.name: file.read_text() for file in folder.secrets.iterdir()}
    finally:
        folder.close()


@contextmanager
def _changed(path: Path, change: Callable[[Path], None]) -> Iterator[None]:
    """Changes a file within the context."""
    content = path.read_bytes()
    change(path)
    try:
        yield
    finally:
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (_PASSWORD, _cut, "not the password of the database role strata_recall. Delete this file"),
        _slow(
            _PASSWORD, lambda path: path.write_text(""), "is empty or not text. Delete this file"
        ),
        _slow(_PASSWORD, lambda path: path.write_text("é" * 43), "ASCII. Delete this file"),
        _slow(_PASSWORD, _replace_by_folder, "Is a directory"),
        _slow(_WORKER_PASSWORD, _cut, "password of the database role strata_gateway_worker"),
        (_SUPERUSER_PASSWORD, _cut, "not the password of the database's superuser. Restore"),
        _slow(_SUPERUSER_PASSWORD, Path.unlink, "cannot be read or created: No such file"),
        _slow("vectors/api_key", lambda path: path.write_text(""), "empty or not text. Delete"),
        (_PEPPER, _cut, "keys were made with another one. Restore .* delete organization-key and"),
        _slow(_PEPPER, lambda path: path.write_text("short"), "at least 16 characters. Restore"),
        _slow(_PEPPER, _replace_by_other_text, "keys were made with another one"),
        _slow(_PEPPER, Path.unlink, "keys were made with another one"),
        _slow("secrets/api-key", _replace_by_folder, "Is a directory"),
        _slow(
            "secrets/token-signing-key", _cut, "not a readable PEM private key. Delete this file"
        ),
    ],
)
async def test_start_with_a_damaged_secret_names_its_file_and_the_remedy(
    used: Path, name: str, change: Callable[[Path], None], expected: str
) -> None:
    file = used / name
    with _changed(file, change), pytest.raises((StrataError, ExceptionGroup)) as caught:
        await _open(used)
    # As the command line does: the engines start in a task group.
    refused = reported_error(caught.value)
    assert isinstance(refused, FailedPreconditionError)
    assert re.search(f"{file} .*{expected}", refused.message)
    assert refused.reason is Reason.CORRUPT_DATA
    assert refused.metadata["file"] == str(file)


async def test_deleted_password_of_a_role_is_replaced(used: Path) -> None:
    file = used / _PASSWORD
    before = file.read_text()
    file.unlink()
    secrets = await _open(used)
    assert secrets.pop(file.name) != before
    assert await _open(used) == secrets | {file.name: file.read_text()}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("api-key", _cut),
        pytest.param("api-key", Path.unlink, marks=pytest.mark.slow),
        pytest.param("organization-key", Path.unlink, marks=pytest.mark.slow),
        pytest.param("organization-key", _cut, marks=pytest.mark.slow),
        pytest.param("organization-key", lambda path: path.write_text(""), marks=pytest.mark.slow),
    ],
)
async def test_lost_or_damaged_key_file_is_replaced(
    used: Path, name: str, change: Callable[[Path], None]
) -> None:
    file = used / "secrets" / name
    before = file.read_text()
    change(file)
    secrets = await _open(used)
    assert secrets[name].startswith("sk-strata-")
    assert secrets[name] != before


async def test_pepper_is_replaced_together_with_both_key_files(used: Path) -> None:
    lost = ("key-pepper", "api-key", "organization-key")
    before = {name: (used / "secrets" / name).read_text() for name in lost}
    for name in lost:
        (used / "secrets" / name).unlink()
    secrets = await _open(used)
    assert all(secrets[name] != before[name] for name in lost)
    assert await _open(used) == secrets
