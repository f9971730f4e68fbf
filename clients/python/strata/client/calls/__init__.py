"""What the generated methods of `strata.client.generated` stand on: short forms, pages, threads."""
