"""Serves one local model over the OpenAI wire protocol, on loopback, in its own process.

The process runs in the runtime's environment, which has neither Strata nor its dependencies: it
imports only the standard library, the llama.cpp bindings and numpy. This package is loaded by path
under the name `serving`, so its imports are relative. `__main__` describes the API.
"""
