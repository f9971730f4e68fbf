"""Agents, conversations and groups: their settings, the commands on them, their store."""
