"""Limits of open files: how many, and how much of each is shown, by context window."""

from __future__ import annotations

from dataclasses import dataclass

from strata.agent_loop.domain.agent.agents import Agent


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of open files.

    Attributes:
        max_open: Files that may be open at once.
        view_chars: Characters of one file that are shown.
    """

    max_open: int
    view_chars: int


# Maximum number of tokens of the context window, limits (docs/wire-format.md#open-files). A window
# of 30,000 tokens allows 5 files of 15,000 characters, for example. The smaller sizes are powers of
# two, as most models with a window "of 8k" have 8,192 tokens.
_BY_CONTEXT_WINDOW = (
    (8_192, FileLimits(3, 5_000)),
    (32_768, FileLimits(5, 15_000)),
    (131_072, FileLimits(10, 25_000)),
    (200_000, FileLimits(10, 40_000)),
)
_LARGEST = FileLimits(15, 40_000)


def default_file_limits(context_window: int) -> FileLimits:
    """Returns the limits of an agent that sets none, for a context window in tokens."""
    fitting = (limits for max_window, limits in _BY_CONTEXT_WINDOW if context_window <= max_window)
    return next(fitting, _LARGEST)


def file_limits_of(agent: Agent, context_window: int) -> FileLimits:
    """Returns the limits in force: the agent's own, or the defaults for its window."""
    default = default_file_limits(context_window)
    return FileLimits(
        agent.max_files_open or default.max_open,
        agent.per_file_view_window_char_limit or default.view_chars,
    )
