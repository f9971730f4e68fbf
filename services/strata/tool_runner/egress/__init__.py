"""Network access of tools: the HTTP proxy through which calls reach their allowed hosts."""
