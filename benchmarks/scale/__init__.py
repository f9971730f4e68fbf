"""How Strata does with a hundred thousand passages and a million messages."""
