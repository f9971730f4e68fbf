"""What clients and services share beside the generated stubs.

Errors and the statuses that carry them, repeated calls, images of messages, arguments of tools.
Nothing here needs more than gRPC and protobuf.
"""
