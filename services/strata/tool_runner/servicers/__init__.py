"""gRPC servicers of the tool runner."""
