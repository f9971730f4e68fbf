"""PostgreSQL stores: agents, conversations, groups, model keys and the step journal."""

from strata.agent_loop.store.agents import PostgresAgentStore
from strata.agent_loop.store.housekeeping import Housekeeping
from strata.agent_loop.store.journal import PostgresJournal
from strata.agent_loop.store.model_keys import PostgresModelKeys

__all__ = ["Housekeeping", "PostgresAgentStore", "PostgresJournal", "PostgresModelKeys"]
