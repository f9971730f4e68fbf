"""Benchmarks of Strata, compared with floors: lower bounds for any system of its kind."""
