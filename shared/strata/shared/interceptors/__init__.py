"""What surrounds every call: on the server from log to deadline, on the client its mirror."""
