"""Migrations of a room that exists for these tests only."""
