"""How long the gateway keeps events of runs, deliveries and webhooks of one run."""
