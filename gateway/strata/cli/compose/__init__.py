"""The composition root: engines, schemas and rooms put together on one machine."""
