"""The command line of Strata; with ``compose`` also what it starts."""
