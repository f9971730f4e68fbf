"""Agents as servers of the Agent2Agent protocol (A2A), versions 1.0 and 0.3.

The types come from the SDK of A2A. The SDK's request handlers are not used: they keep tasks in the
memory of one process, but here a task is a run, which any replica can serve.
"""
