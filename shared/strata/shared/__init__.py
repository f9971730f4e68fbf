"""What every room stands on: errors, context, transport, storage and search plumbing."""
