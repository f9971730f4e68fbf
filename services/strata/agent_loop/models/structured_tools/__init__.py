"""Tool calls of models without tool calling: one JSON action per reply."""
