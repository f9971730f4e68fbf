"""Between the messages of the wire and the domain; the one place that checks requests."""
