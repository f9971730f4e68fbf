"""The tools that every project has."""
