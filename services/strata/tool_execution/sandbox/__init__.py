"""The sandbox: runs code that nobody trusts, a jail for every call."""
