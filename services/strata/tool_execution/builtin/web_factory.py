"""Creates the web tools from the settings."""

from __future__ import annotations

from contextlib import AsyncExitStack

from strata.shared.settings import MIB
from strata.shared.web.fetcher import Fetcher, FetchLimits
from strata.shared.web.resolver import SystemResolver
from strata.shared.web.url_guard import Guard, Trusting
from strata.tool_execution.builtin.page_reader import PDF_TYPES, PageReader
from strata.tool_execution.builtin.web import WebTools
from strata.tool_execution.builtin.web_search import SearchProvider, open_provider
from strata.tool_execution.settings import ToolExecutionSettings

# The rest of a larger page is ignored: models read much shorter texts.
_PAGE_BYTES = 2 * MIB
# A PDF cannot be read in part; larger ones are refused.
_PDF_BYTES = 16 * MIB


async def open_web_tools(settings: ToolExecutionSettings, stack: AsyncExitStack) -> WebTools:
    """Returns the executor of the web tools; the stack closes its connections."""
    resolver = SystemResolver()
    stack.callback(resolver.close)
    guard = Guard(
        resolver, private_networks=settings.web_private_networks, ports=settings.web_ports
    )
    limits = FetchLimits(
        total_s=settings.web_timeout_s,
        body_bytes=_PAGE_BYTES,
        body_bytes_of=dict.fromkeys(PDF_TYPES, _PDF_BYTES),
    )
    fetcher = await stack.enter_async_context(Fetcher(guard, limits))
    search: SearchProvider | None = None
    if settings.web_search_provider is not None:
        # The address in the settings is trusted, but targets of redirects are not.
        search_fetcher = Fetcher(
            Trusting(resolver), FetchLimits(total_s=settings.web_timeout_s, redirects=0)
        )
        search = open_provider(
            settings.web_search_provider,
            settings.web_search_url,
            settings.web_search_api_key.get_secret_value(),
            await stack.enter_async_context(search_fetcher),
        )
    return WebTools(fetcher, PageReader(), search)
