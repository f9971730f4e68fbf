"""Idempotent requests: the rule for ``request_id``, and the tables of stored responses.

docs/guides/getting-started.md#request-ids describes the rule for clients.
"""
