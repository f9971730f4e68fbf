"""Webhooks, HTTP requests at the end of runs: subscriptions, queue of deliveries, sending."""
