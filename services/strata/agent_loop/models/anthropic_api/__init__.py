"""Adapters for Anthropic's messages API, also at clouds."""
