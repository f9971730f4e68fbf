"""What search finds of public chats: the real recall service beside simple searches."""
