"""Retention of run events, webhook deliveries and webhooks of single runs."""
