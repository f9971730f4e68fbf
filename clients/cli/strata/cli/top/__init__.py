"""The live view of `strata top`."""
