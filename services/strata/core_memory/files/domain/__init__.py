"""What folders and files are, without a database and without a wire."""
