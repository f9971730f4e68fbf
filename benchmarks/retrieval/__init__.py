"""Retrieval benchmark on public chats: the real recall service compared with simple searches."""
