"""Scale benchmark: a hundred thousand passages and a million messages."""
