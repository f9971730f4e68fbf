"""What recall means, free of transport and storage."""
