"""Safe access to the web (protection against SSRF): address checks, URL guard, bounded fetching."""
