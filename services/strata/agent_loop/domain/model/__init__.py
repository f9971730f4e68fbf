"""Chat models as the loop sees them: requests, replies, settings, errors and stored keys."""
