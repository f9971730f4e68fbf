"""Schedules: their times, their ticks, and the start of their runs."""
