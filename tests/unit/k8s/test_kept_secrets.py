"""Secrets for a cluster that takes over the database of a data folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from strata.shared.secrets import generate_master_key, open_envelope
from strata.standalone.compose.services import SERVICES
from unit.k8s.manifests import K8S
from unit.k8s.secrets_script import kept_secrets, main, secret_files, secret_objects

GUIDE = K8S.parent / "docs" / "guides" / "backup.md"


def make_backup(folder: Path) -> dict[str, str]:
    """Makes the files of a backup that the script reads; returns their texts."""
    texts = {
        "key-pepper": "a pepper",
        "gateway-master-key": generate_master_key(),
        "master-key": generate_master_key(),
        "tool-master-key": f"{generate_master_key()}\n{generate_master_key()}\n",
    }
    (folder / "secrets").mkdir()
    for name, text in texts.items():
        (folder / "secrets" / name).write_text(text)
    return texts


def test_pepper_and_master_keys_are_those_of_the_backup(tmp_path: Path) -> None:
    texts = make_backup(tmp_path)
    files = secret_files(secret_objects(kept=kept_secrets(tmp_path)))
    assert files["gateway"]["pepper"] == "a pepper"
    keys = {
        "gateway": "gateway-master-key",
        "agent-loop": "master-key",
        "tool-execution": "tool-master-key",
    }
    for container, name in keys.items():
        assert files[container]["master.keys"] == texts[name].strip()


def test_secret_sealed_with_an_earlier_key_can_be_opened(tmp_path: Path) -> None:
    newest, earlier = make_backup(tmp_path)["tool-master-key"].split()
    envelopes = [open_envelope([key], None) for key in (newest, earlier)]
    file = tmp_path / "master.keys"
    objects = secret_objects(kept=kept_secrets(tmp_path))
    file.write_text(secret_files(objects)["tool-execution"]["master.keys"])
    envelope = open_envelope((), file)
    assert envelope is not None
    for sealing in filter(None, envelopes):
        assert envelope.open(sealing.seal(b"secret", b"context"), b"context") == b"secret"


def test_other_keys_and_passwords_are_new(tmp_path: Path) -> None:
    make_backup(tmp_path)
    first, second = (secret_objects(kept=kept_secrets(tmp_path)) for _ in range(2))
    values = [{s["metadata"]["name"]: s["stringData"] for s in made} for made in (first, second)]
    assert (
        values[0]["strata-gateway-keys"]["private.pem"]
        != (values[1]["strata-gateway-keys"]["private.pem"])
    )
    assert values[0]["strata-recall-database"] != values[1]["strata-recall-database"]


def test_backup_without_a_key_is_refused(tmp_path: Path) -> None:
    make_backup(tmp_path)
    (tmp_path / "secrets" / "tool-master-key").unlink()
    with pytest.raises(FileNotFoundError, match=r"secrets/tool-master-key\. --backup expects"):
        kept_secrets(tmp_path)


@pytest.mark.parametrize("name", ["admin-password", "qdrant-api-key", "backup"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read|are missing"), (b"\n", "is empty"), (b"\xff", "cannot be read")],
    ids=["missing", "empty", "binary"],
)
def test_unusable_files_are_refused_and_not_replaced_by_new_values(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes | None,
    problem: str,
) -> None:
    make_backup(tmp_path)
    file = tmp_path / "secrets" / "master-key" if name == "backup" else tmp_path / "file"
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    option = ["--backup", tmp_path] if name == "backup" else [f"--{name}-file", file]
    monkeypatch.setattr(sys, "argv", ["generate_secrets.py", *map(str, option)])
    with pytest.raises(SystemExit) as ended:
        main()
    written = capsys.readouterr()
    assert (ended.value.code, written.out) == (1, "")
    assert re.search(f"{file.name}.*({problem})|({problem}).*{file.name}", written.err)


@pytest.mark.child_process
def test_guide_creates_the_roles_of_all_services() -> None:
    match = re.search(
        r"^ +for service in .*?^   done", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert match is not None
    done = subprocess.run(["/bin/sh", "-c", match[0]], capture_output=True, check=True, text=True)
    roles = [spec.migrations.roles for spec in SERVICES]
    expected = {name for role in roles for name in (role.owner, role.service, role.worker)}
    assert set(re.findall(r"CREATE ROLE (\w+);", done.stdout)) == expected
