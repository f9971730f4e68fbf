"""The gRPC servicers of core memory: blocks, the context of the agent loop, and files."""
