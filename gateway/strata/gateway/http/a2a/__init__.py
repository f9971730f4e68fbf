"""Agents as servers of the Agent2Agent protocol (A2A), versions 1.0 and 0.3.

The types are those of its SDK. The parts of the SDK that serve requests are not used: they hold the
tasks of a process in its memory, and a task here is a run, which any replica can serve.
"""
