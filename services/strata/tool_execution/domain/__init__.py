"""What a tool and a call of it are, free of transport."""
