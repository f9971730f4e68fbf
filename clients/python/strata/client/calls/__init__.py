"""Base of the generated methods of `strata.client.generated`: short forms, pages, threads."""
