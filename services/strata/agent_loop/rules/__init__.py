"""Decides which tools may be called. Pure and stateless."""
