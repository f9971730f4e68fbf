"""The path at which the HTTP port serves the web console."""

from __future__ import annotations

CONSOLE_PATH = "/console"
