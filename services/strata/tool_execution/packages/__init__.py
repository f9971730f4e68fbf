"""Python packages of tools, in environments that are built once and then only read."""

from strata.tool_execution.packages.builder import Builder, BuildLimits
from strata.tool_execution.packages.environments import Environments

__all__ = ["BuildLimits", "Builder", "Environments"]
