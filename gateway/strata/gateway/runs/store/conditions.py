"""SQL conditions of several statements of runs.

The conditions on states (``state IN …``) are generated from the transitions in `states`, so that
the database allows exactly the transitions that `states` defines.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata.gateway.runs.domain.states import ACTIVE_STATES, OPEN_STATES, RunState


def states_sql(states: Iterable[RunState]) -> str:
    """Returns a list of states, for ``state IN (…)``."""
    return ", ".join(f"'{state}'" for state in sorted(states))


ACTIVE = states_sql(ACTIVE_STATES)
OPEN = states_sql(OPEN_STATES)

PENDING_APPROVAL = "decide_time IS NULL AND (default_approve OR expire_time > now())"
"""A pending approval blocks its conversation. After its deadline its calls count as denied, unless
they are approved by default: then it is pending until a gateway approves them."""
