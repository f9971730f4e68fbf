"""Between the messages of the contract and the domain, both ways, with validation."""
