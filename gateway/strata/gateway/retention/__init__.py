"""Retention of run events, approvals, webhook deliveries and webhooks of single runs."""
