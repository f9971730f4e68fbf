"""Derives the schema of a custom tool from its Python source, without running it."""

from strata.tool_execution.schema.derive import DerivedTool, derive_tool
from strata.tool_execution.schema.problems import Problem, SourceError

__all__ = ["DerivedTool", "Problem", "SourceError", "derive_tool"]
