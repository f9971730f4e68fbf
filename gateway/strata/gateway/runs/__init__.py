"""Runs: their states in the database, their dispatch to agent_loop, their event streams."""
