"""The sandbox: runs untrusted code, with a new jail for every call."""
