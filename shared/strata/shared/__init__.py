"""What every service stands on: errors, context, transport, storage and search plumbing."""
