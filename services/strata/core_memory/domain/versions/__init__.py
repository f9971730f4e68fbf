"""The versions of a block: diffs, blame and reverts."""
