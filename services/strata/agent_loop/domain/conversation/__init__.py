"""The messages of a conversation, approval requests among them, and their taint."""
