"""The capacity of a cluster: what a turn needs of each service, and what follows from it."""
