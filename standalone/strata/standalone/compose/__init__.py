"""The composition root: engines, schemas and services put together on one machine."""
