"""The program of the fork server: run by path in a fresh interpreter, it imports no Strata."""
