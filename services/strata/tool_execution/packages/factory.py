"""Creates the provider of packages from the settings."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

from uv import find_uv_bin

from strata.shared.sandbox import tool_interpreter
from strata.tool_execution.packages.builder import Builder, BuildLimits
from strata.tool_execution.packages.environments import Environments
from strata.tool_execution.settings import ToolExecutionSettings


async def open_packages(
    settings: ToolExecutionSettings, stack: AsyncExitStack
) -> Environments | None:
    """Returns the provider of packages, or None if they are switched off; the stack closes it.

    Raises:
        ValueError: The folder of the settings cannot be used.
    """
    root = settings.packages_path
    if not settings.packages or root is None:
        return None
    builder = Builder(
        uv=find_uv_bin(),
        interpreter=tool_interpreter(),
        index_url=settings.packages_index_url.get_secret_value(),
        wheels=settings.packages_wheels,
        proxy=settings.packages_proxy.get_secret_value(),
        no_proxy=settings.packages_no_proxy,
        ca_file=settings.packages_ca_file.absolute() if settings.packages_ca_file else None,
        system_certs=settings.packages_system_certs,
        limits=BuildLimits(seconds=settings.packages_timeout_s, bytes=settings.packages_bytes),
    )
    try:
        environments = Environments(
            root.absolute(), builder, unused=timedelta(days=settings.packages_days)
        )
    except OSError as error:
        raise ValueError(
            f"packages_path: the folder {root} cannot be used: {error.strerror}"
        ) from error
    stack.push_async_callback(environments.close)
    await asyncio.to_thread(environments.remove_unused)
    return environments
