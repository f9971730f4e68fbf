"""Settings of traces, the same for all services."""

from __future__ import annotations

from pydantic import AnyHttpUrl, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from strata.shared.settings import EnvironmentSettings

TRACES_PREFIX = "STRATA_TRACES_"
SIGNAL_PATH = "/v1/traces"


class TraceSettings(EnvironmentSettings):
    """Settings of traces (docs/guides/traces.md). Every service reads them."""

    model_config = SettingsConfigDict(
        env_prefix=TRACES_PREFIX, env_ignore_empty=True, frozen=True, hide_input_in_errors=True
    )

    endpoint: AnyHttpUrl | None = Field(
        default=None,
        description="URL of a collector that takes OTLP over HTTP, `http://collector:4318`;"
        f" `{SIGNAL_PATH}` is added to a URL without a path. Unset means no traces.",
    )
    sample_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the traces that begin here that are exported. A client that sends a"
        " `traceparent` decides for its own.",
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict,
        repr=False,
        description="Headers for the collector as a JSON object, such as"
        ' `{"authorization": "Bearer …"}`.',
    )

    @property
    def url(self) -> str:
        """Where the spans are sent; empty if traces are off."""
        if self.endpoint is None:
            return ""
        url = str(self.endpoint)
        return url.rstrip("/") + SIGNAL_PATH if self.endpoint.path in {None, "", "/"} else url
