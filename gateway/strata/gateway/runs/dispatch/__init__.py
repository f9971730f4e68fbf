"""Execution of runs: claims, slots, attempts and the relay of agent_loop's events."""
