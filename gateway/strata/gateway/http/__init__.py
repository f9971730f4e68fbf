"""The gateway over HTTP: the Connect protocol, gRPC-Web and the APIs of other clients."""
