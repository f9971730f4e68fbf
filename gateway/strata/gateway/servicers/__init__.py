"""Servicers of the gateway's own gRPC services."""
