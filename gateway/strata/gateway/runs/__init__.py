"""Runs: their life in the database, their dispatch to agent_loop, their event streams."""
