"""What search finds of public chats: the real recall room beside simple searches."""
