"""The data folder: its lock, its permissions and its secrets."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strata.client.data_folder import Runtime
from strata.client.settings import default_data_folder
from strata.protocol.errors import FailedPreconditionError, Reason
from strata.shared.secrets import generate_master_key
from strata.standalone.compose.local import _master_key, _signing_key
from strata.standalone.data_folder import DataFolder
from strata.standalone.locks import FolderLock
from strata.standalone.postgres_binaries import unprivileged_identity


@pytest.fixture
def path(open_folder: Path) -> Path:
    return open_folder / "made" / "on" / "demand"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nothing_is_created_before_the_folder_is_opened(path: Path) -> None:
    data = DataFolder(path)

    assert data.running() is None
    assert data.holder() is None
    assert not path.exists()


def test_other_users_can_read_nothing(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for parent in (path.parent, path.parent.parent):
        parent.chmod(0o755)
    data = DataFolder(path)
    data.open()
    data.secret("key")
    data.announce("127.0.0.1:1", {})

    # If Strata runs as root, the database's user may enter the folder but not list it.
    assert _mode(path) == (0o711 if os.geteuid() == 0 else 0o700)
    for folder in (data.postgres, data.vectors, data.secrets):
        assert _mode(folder) == 0o700
    for file in (data.secrets / "key", path / "lock", path / "runtime.json"):
        assert _mode(file) == 0o600
    data.close()


def test_the_error_for_a_second_process_names_pid_and_address(path: Path) -> None:
    path.parent.parent.mkdir(mode=0o755, parents=True)
    data = DataFolder(path)
    data.open()
    data.announce("127.0.0.1:7700", {"postgres": 12})

    with pytest.raises(FailedPreconditionError) as refused:
        DataFolder(path).open()
    assert refused.value.reason is Reason.IN_USE
    assert f"process {os.getpid()} (127.0.0.1:7700)" in refused.value.message
    assert DataFolder(path).holder() == os.getpid()
    assert DataFolder(path).running() == Runtime(os.getpid(), "127.0.0.1:7700", {"postgres": 12})

    data.close()
    assert DataFolder(path).running() is None
    again = DataFolder(path)
    again.open()
    again.close()


@pytest.mark.child_process
def test_the_published_state_of_a_dead_process_is_ignored(path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path;"
        "from strata.standalone.data_folder import DataFolder;"
        "data = DataFolder(Path(sys.argv[1])); data.open();"
        "data.announce('127.0.0.1:7700', {}); os._exit(9)"
    )
    roots = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run(
        [sys.executable, "-c", program, str(path)], env={"PYTHONPATH": roots}, check=False
    )
    assert (path / "runtime.json").exists()

    data = DataFolder(path)
    assert data.running() is None
    starting = FolderLock(path / "lock", "the data folder")
    starting.acquire("starting")
    assert data.running() is None, "the next process has the folder, and removes the file next"
    starting.release()
    data.open()
    assert not (path / "runtime.json").exists()
    assert data.running() is None, "the folder is open, but no address is announced yet"
    data.close()


def test_reading_the_holder_does_not_lock_the_folder(path: Path) -> None:
    data = DataFolder(path)
    data.open()
    data.close()
    watchers = [DataFolder(path) for _ in range(3)]
    for _ in range(20):
        assert all(watcher.holder() is None for watcher in watchers)
        data.open()
        data.close()


def test_a_secret_is_made_once(path: Path) -> None:
    data = DataFolder(path)
    data.open()
    first = data.secret("key")
    assert len(first) >= 32
    assert data.secret("key") == first
    assert data.secret("other") != first
    assert data.secret("chosen", lambda: "own") == "own"
    assert data.secret("chosen", lambda: "another") == "own"
    assert data.role_passwords("recall") == data.role_passwords("recall")
    assert data.role_passwords("recall").service != data.role_passwords("archival").service
    data.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands a folder to another user")
def test_a_folder_that_the_database_cannot_reach_is_refused_by_name(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(FailedPreconditionError, match=str(closed)):
        DataFolder(closed / "data").open()


def test_the_default_folder_is_accessible_for_the_database() -> None:
    path = default_data_folder()

    assert path.is_absolute()
    if os.geteuid() == 0 and sys.platform == "linux":
        assert unprivileged_identity().uid > 0
        assert path == Path("/var/lib/strata")
    else:
        assert path.is_relative_to(Path.home())


@pytest.mark.parametrize("below", ["", "deeper", "deeper/still"])
def test_a_file_in_place_of_the_folder_is_refused(open_folder: Path, below: str) -> None:
    file = open_folder / "file"
    file.write_text("x")
    folder = DataFolder(file / below if below else file)
    for use in (folder.open, folder.holder, folder.running):
        with pytest.raises(FailedPreconditionError, match=f"{file} is a file. Name a folder"):
            use()


def test_the_metrics_addresses_are_written_in_the_format_of_prometheus(open_folder: Path) -> None:
    data = DataFolder(open_folder / "data")
    data.open()
    data.announce_metrics("127.0.0.1", {"recall": 7692, "gateway": 7690})
    data.close()
    assert json.loads(data.metrics_targets.read_text()) == [
        {"targets": ["127.0.0.1:7690"], "labels": {"process": "gateway"}},
        {"targets": ["127.0.0.1:7692"], "labels": {"process": "recall"}},
    ]
    data.announce_metrics("::1", {"strata": 1})
    [target] = json.loads(data.metrics_targets.read_text())
    assert target["targets"] == ["[::1]:1"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00"])
def test_a_damaged_secret_is_refused_and_kept(path: Path, content: bytes) -> None:
    path.parent.parent.mkdir(mode=0o755, parents=True)
    data = DataFolder(path)
    data.open()
    secret = data.secret("key")
    file = data.secrets / "key"
    file.write_bytes(content)
    with pytest.raises(
        FailedPreconditionError, match=f"{file} is damaged.*strata restore"
    ) as error:
        data.secret("key")
    assert error.value.reason is Reason.CORRUPT_DATA
    assert file.read_bytes() == content
    file.write_text(f"{secret}\n")
    assert data.secret("key") == secret, "an editor may have added the end of the line"
    data.close()


@pytest.mark.parametrize(
    "read",
    [
        lambda data: _signing_key(data, "signing-key"),
        lambda data: _master_key(data, "master-key"),
        lambda data: _master_key(data, "tool-master-key", generate_master_key()),
    ],
)
def test_a_key_that_lost_its_end_is_refused(path: Path, read: Callable[[DataFolder], str]) -> None:
    path.parent.parent.mkdir(mode=0o755, parents=True)
    data = DataFolder(path)
    data.open()
    key = read(data)
    assert read(data) == key
    (file,) = data.secrets.iterdir()
    os.truncate(file, file.stat().st_size - 20)
    with pytest.raises(FailedPreconditionError, match=f"{file} is damaged"):
        read(data)
    data.close()
