"""Runs that start at a time: schedules, their ticks, and what starts the runs."""
