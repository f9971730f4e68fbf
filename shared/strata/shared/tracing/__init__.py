"""Traces: spans of calls, runs, model calls, tool calls and statements, for OpenTelemetry.

A call that is not traced has no span in its context, and the code that would make spans under it
does nothing. Only `otlp` loads OpenTelemetry, and only where traces are on.
"""
