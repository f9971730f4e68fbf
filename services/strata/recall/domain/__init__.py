"""The rules of recall, free of transport and storage."""
