"""Builds the objects of the gateway from its settings; `main` combines them into the service."""
