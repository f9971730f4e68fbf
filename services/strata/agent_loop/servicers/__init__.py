"""The gRPC services of the room."""
