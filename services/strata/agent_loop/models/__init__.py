"""Chat models: the loop's view of them, one adapter per wire protocol, and their selection."""
