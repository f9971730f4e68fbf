"""The input messages of agents that read conversations or documents."""
