"""Built-in tools: their definitions for the model, and the functions that run them."""
