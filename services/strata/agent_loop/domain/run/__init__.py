"""What a run is asked, what it reports, and what its journal holds."""
