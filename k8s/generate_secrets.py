"""Writes the Secrets that the manifests name, with fresh keys and passwords, to standard output.

    python k8s/generate_secrets.py | kubectl create --filename -

``create`` and not ``apply``: a second run makes other passwords and another pepper, and the
pepper is what the hashes of the API keys depend on.

With ``--backup`` the pepper and the master keys are those of a backup of a data folder, so that the
API keys and the stored secrets of its database stay valid.

With ``--folder`` it writes them as files instead, one folder per container, for Docker Compose.
There a second run changes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from strata.shared.auth import generate_key_pair
from strata.shared.migrate import ServiceRoles
from strata.shared.secrets import generate_master_key

_SERVICES = ("gateway", "agent_loop", "core_memory", "recall", "archival", "tool_execution")
# The services that search in Qdrant.
_SEARCHING = ("recall", "archival")
_ENVIRONMENT = "environment"
# Files of a backup's folder ``secrets``: what the rows of its database depend on.
_PEPPER = "key-pepper"
_GATEWAY_MASTER_KEYS = "gateway-master-key"
_MODEL_MASTER_KEYS = "master-key"
_TOOL_MASTER_KEYS = "tool-master-key"
_KEPT = (_PEPPER, _GATEWAY_MASTER_KEYS, _MODEL_MASTER_KEYS, _TOOL_MASTER_KEYS)


def secret_objects(
    *,
    namespace: str = "strata",
    postgres: str = "postgres:5432",
    database: str = "strata",
    admin_user: str = "postgres",
    admin_password: str = "",
    qdrant_api_key: str = "",
    kept: Mapping[str, str] | None = None,
) -> list[dict[str, object]]:
    """Returns the Secrets.

    Args:
        namespace: Namespace of the Secrets.
        postgres: ``host:port`` of PostgreSQL.
        database: The database in it.
        admin_user: A superuser, or a role that may make roles, schemas and extensions.
        admin_password: Its password; empty for a new one, which a new server then takes.
        qdrant_api_key: The key of the Qdrant that is used; empty for a new one.
        kept: What `kept_secrets` returned, for the database of a backup; by default new ones.
    """
    if kept is None:
        kept = {_PEPPER: secrets.token_urlsafe(32)}
        kept |= {name: generate_master_key() for name in _KEPT if name != _PEPPER}
    private_key, public_key = generate_key_pair()
    worker_private_key, worker_public_key = generate_key_pair()
    admin_password = admin_password or secrets.token_urlsafe(32)

    def url(user: str, password: str) -> str:
        return f"postgresql://{quote(user)}:{quote(password, safe='')}@{postgres}/{database}"

    values: dict[str, dict[str, str]] = {
        # The master key encrypts the secrets of webhooks.
        "strata-gateway-keys": {
            "private.pem": private_key,
            "pepper": kept[_PEPPER],
            "master.keys": kept[_GATEWAY_MASTER_KEYS],
        },
        "strata-token-keys": {"public.pem": public_key},
        # The worker of core memory signs for itself; archival alone trusts it, for its index of
        # files.
        "strata-core-memory-keys": {"public.pem": public_key, "worker.pem": worker_private_key},
        "strata-archival-keys": {"public.pem": public_key, "file-worker.pem": worker_public_key},
        # Encrypts stored model keys, which cannot be read without it.
        "strata-agent-loop-keys": {
            "public.pem": public_key,
            "master.keys": kept[_MODEL_MASTER_KEYS],
        },
        # The same for the secrets of tools.
        "strata-tool-execution-keys": {
            "public.pem": public_key,
            "master.keys": kept[_TOOL_MASTER_KEYS],
        },
        "strata-migrate": {"admin-url": url(admin_user, admin_password)},
        "strata-postgres": {"password": admin_password},
        "strata-qdrant": {"api-key": qdrant_api_key or secrets.token_urlsafe(32)},
    }
    for service in _SERVICES:
        roles = ServiceRoles.of(service)
        values[f"strata-{service.replace('_', '-')}-database"] = {
            "url": url(roles.service, secrets.token_urlsafe(32)),
            "worker-url": url(roles.worker, secrets.token_urlsafe(32)),
        }
    return [_secret(name, namespace, values[name]) for name in sorted(values)]


def kept_secrets(backup: Path) -> dict[str, str]:
    """Returns the pepper and the master keys of a backup, by the names of their files.

    Args:
        backup: A folder that ``strata backup`` made.

    Raises:
        FileNotFoundError: The folder lacks some of them; the message names them.
        ValueError: One of them is empty, or cannot be read.
    """
    paths = {name: backup / "secrets" / name for name in _KEPT}
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"These files are missing: {', '.join(missing)}. --backup expects a folder made by"
            " `strata backup`. If an earlier release made it, restore it, start it once with"
            " `strata up`, and make a new backup."
        )
    return {name: content_of(path) for name, path in paths.items()}


def _secret(name: str, namespace: str, values: dict[str, str]) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "strata"},
        },
        "type": "Opaque",
        "stringData": values,
    }


def secret_files(objects: list[dict[str, object]]) -> dict[str, dict[str, str]]:
    """Returns the same Secrets as texts of files, by container and name of the file.

    What a container takes from its environment is in the file ``environment``, as assignments for
    a shell.

    Args:
        objects: What `secret_objects` returned.
    """
    values = {_name_of(secret): _values_of(secret) for secret in objects}
    qdrant_api_key = values["strata-qdrant"]["api-key"]
    public_keys = values["strata-token-keys"]
    files = {"tool-runner": dict(public_keys)}
    databases: dict[str, str] = {}
    for service in _SERVICES:
        app, prefix = service.replace("_", "-"), f"STRATA_{service.upper()}"
        urls = values[f"strata-{app}-database"]
        environment = {
            f"{prefix}_DATABASE_URL": urls["url"],
            f"{prefix}_WORKER_DATABASE_URL": urls["worker-url"],
        }
        databases |= environment
        if service in _SEARCHING:
            environment[f"{prefix}_QDRANT_API_KEY"] = qdrant_api_key
        keys = values.get(f"strata-{app}-keys", public_keys)
        files[app] = {**keys, _ENVIRONMENT: _assignments(environment)}
    admin_url = {"STRATA_DATABASE_ADMIN_URL": values["strata-migrate"]["admin-url"]}
    others = {
        "migrate": {**admin_url, **databases},
        "postgres": {"POSTGRES_PASSWORD": values["strata-postgres"]["password"]},
        "qdrant": {"QDRANT__SERVICE__API_KEY": qdrant_api_key},
    }
    for name, environment in others.items():
        files[name] = {_ENVIRONMENT: _assignments(environment)}
    return files


def write_files(folder: Path, files: dict[str, dict[str, str]]) -> bool:
    """Writes the files of each container into a folder of its name, readable by user and group.

    Args:
        folder: Where the folders of the containers are.
        files: What `secret_files` returned.

    Returns:
        False if all of them were there, and nothing was written.

    Raises:
        FileExistsError: Some of them were there. New values would not match them.
    """
    texts = {folder / name / file: text for name in files for file, text in files[name].items()}
    missing = [path for path in texts if not path.exists()]
    if not missing:
        return False
    if len(missing) < len(texts):
        names = ", ".join(str(path) for path in missing)
        raise FileExistsError(f"Some secrets exist, but these files are missing: {names}")
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o440)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    return True


def _assignments(environment: dict[str, str]) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in environment.items())


def _name_of(secret: dict[str, object]) -> str:
    metadata = secret["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata["name"])


def _values_of(secret: dict[str, object]) -> dict[str, str]:
    values = secret["stringData"]
    assert isinstance(values, dict)
    return values


def content_of(file: Path | None) -> str:
    """Returns the text of a file without surrounding spaces; empty for no file.

    Raises:
        ValueError: It cannot be read, or is empty: a new value would not be that of the server.
    """
    if file is None:
        return ""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not text:
        raise ValueError(f"{file} is empty.")
    return text


def main() -> None:
    """Writes one List object as JSON, which kubectl takes like YAML, or files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--namespace", default="strata")
    parser.add_argument("--postgres", default="postgres:5432", metavar="HOST:PORT")
    parser.add_argument("--database", default="strata")
    parser.add_argument("--admin-user", default="postgres")
    existing = "file with that of an existing server"
    parser.add_argument("--admin-password-file", type=Path, metavar="FILE", help=existing)
    parser.add_argument("--qdrant-api-key-file", type=Path, metavar="FILE", help=existing)
    parser.add_argument(
        "--folder", type=Path, help="write files into a folder per container, unless they are there"
    )
    parser.add_argument(
        "--backup", type=Path, metavar="FOLDER", help="backup whose keys stay valid"
    )
    arguments = parser.parse_args()
    try:
        kept = kept_secrets(arguments.backup) if arguments.backup is not None else None
        admin_password = content_of(arguments.admin_password_file)
        qdrant_api_key = content_of(arguments.qdrant_api_key_file)
    except (FileNotFoundError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    objects = secret_objects(
        namespace=arguments.namespace,
        postgres=arguments.postgres,
        database=arguments.database,
        admin_user=arguments.admin_user,
        admin_password=admin_password,
        qdrant_api_key=qdrant_api_key,
        kept=kept,
    )
    if arguments.folder is not None:
        try:
            written = write_files(arguments.folder, secret_files(objects))
        except FileExistsError as error:
            parser.exit(1, f"{error}\n")
        sys.stdout.write("Secrets written.\n" if written else "The secrets exist already.\n")
        return
    json.dump({"apiVersion": "v1", "kind": "List", "items": objects}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
