"""Network access of tools: the proxy through which the sandbox's calls reach the hosts they name."""
