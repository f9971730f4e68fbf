"""The gRPC servicers of recall: convert requests, call the store, convert results."""
