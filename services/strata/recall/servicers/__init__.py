"""Services of recall beside those in `servicer`."""
