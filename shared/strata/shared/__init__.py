"""Code that all services use: errors, call context, transport, storage, embeddings and search."""
