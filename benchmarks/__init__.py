"""Measures Strata beside the floors that no system of its kind can go below."""
