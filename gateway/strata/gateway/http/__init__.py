"""The gateway over HTTP: the Connect protocol, gRPC-Web and APIs that other clients know."""
