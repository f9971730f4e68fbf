"""The rules of core memory, free of transport, database and generated code."""
