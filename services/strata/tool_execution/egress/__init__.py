"""Network access of tools: the proxy through which calls reach the hosts that they name."""
