"""The gRPC services of the service."""
