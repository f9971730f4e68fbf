"""Gateways as processes of their own."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from child_processes import SOURCE_PATH
from integration.gateway.scripted_services import ScriptedServices, take_timing
from service_process import command_of
from strata.gateway.runs.domain import timing


async def start_process(
    services: ScriptedServices, **changes: Any
) -> tuple[asyncio.subprocess.Process, str]:
    """Starts a gateway as a process of its own, as `strata-gateway` does."""
    constants = take_timing(changes)
    settings = services.settings(**changes)
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": SOURCE_PATH,
        "STRATA_GATEWAY_PORT": "0",
        "STRATA_GATEWAY_DATABASE_URL": settings.database_url,
        "STRATA_GATEWAY_WORKER_DATABASE_URL": settings.worker_database_url,
        "STRATA_GATEWAY_TOKEN_PRIVATE_KEY": settings.token_private_key,
        "STRATA_GATEWAY_KEY_PEPPER": settings.key_pepper,
        "STRATA_GATEWAY_DRAIN_S": "0",
        "STRATA_GATEWAY_GRACE_S": "0.2",
        **{
            f"STRATA_GATEWAY_TARGETS__{service.upper()}": target
            for service, target in services.targets.items()
        },
    }
    process = await asyncio.create_subprocess_exec(
        *command_of(
            "strata.gateway.main",
            {f"{timing.__name__}.{name}": value for name, value in constants.items()},
        ),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
    assert line.startswith("READY gateway "), line
    return process, line.split()[-1]
