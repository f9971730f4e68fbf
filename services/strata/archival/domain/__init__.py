"""The rules of archives and passages, free of transport, storage and engine."""
