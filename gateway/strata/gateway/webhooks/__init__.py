"""HTTP requests that say that a run has ended: subscriptions, the queue of deliveries, sending."""
