"""One turn of an agent, over protocols: no transport, no store, no provider's SDK."""
