"""The gateway of a local Strata has the same settings in its own process as in the common one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata.gateway.settings import GatewaySettings
from strata.shared.auth import generate_key_pair
from strata.shared.secrets import generate_master_key
from strata.standalone.compose.local import HOST, Local
from strata.standalone.compose.services import GATEWAY
from strata.standalone.compose.split import _values, environment_of
from strata.standalone.data_folder import DataFolder


def test_gateway_in_its_own_process_has_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_key, worker_key = (generate_key_pair()[0] for _ in range(2))
    in_one_process = GatewaySettings(
        host=HOST,
        http_port=7601,
        internal_listen="127.0.0.1:7602",
        database_url="postgresql://service",
        worker_database_url="postgresql://worker",
        token_private_key=private_key,
        key_pepper="pepper",
        master_keys=(generate_master_key(), generate_master_key()),
        only_replica=True,
        pool_size=4,
        log_format="console",
        log_level="WARNING",
        drain_s=0.0,
        grace_s=10.0,
    )
    database = SimpleNamespace(service_url="postgresql://service", worker_url="postgresql://worker")
    storage: Any = SimpleNamespace(databases={"gateway": database})
    model: Any = SimpleNamespace(endpoints=(), default_model="")
    local = Local(
        DataFolder(tmp_path), storage, model, in_one_process, private_key, worker_key, "", ""
    )

    for name, value in environment_of(GATEWAY.name, _values(local, GATEWAY)).items():
        monkeypatch.setenv(name, value)
    separate = GatewaySettings()

    different = {
        name
        for name in in_one_process.model_fields_set
        if getattr(separate, name) != getattr(in_one_process, name)
    }
    assert different == set()
