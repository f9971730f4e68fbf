"""Packages of tools: environments, each built once and then only read."""

from strata.tool_execution.packages.builder import Builder, BuildLimits
from strata.tool_execution.packages.environments import Environments

__all__ = ["BuildLimits", "Builder", "Environments"]
