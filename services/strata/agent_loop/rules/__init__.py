"""Decides which tools may be called when. Pure and stateless."""
