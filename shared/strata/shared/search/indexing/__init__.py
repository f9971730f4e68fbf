"""The texts of a collection in the vector index, and the task that keeps them up to date."""
