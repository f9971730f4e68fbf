"""The program of the fork server. It runs in a new interpreter and imports nothing of Strata."""
