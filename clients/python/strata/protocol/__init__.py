"""Code that clients and services share, besides the generated stubs.

Errors and the statuses that carry them, repeated calls, images of messages, arguments of tools. It
depends only on gRPC and protobuf.
"""
