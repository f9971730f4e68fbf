"""Migrations of a service that exists for these tests only."""
