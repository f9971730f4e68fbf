"""Explanation of runs: their time, tokens and cost by step."""
