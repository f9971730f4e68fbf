"""What archives and passages are, free of transport, storage and engine."""
