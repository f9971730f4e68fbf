"""Serves one local model over the OpenAI wire protocol, on loopback, in a process of its own.

The process lives in the runtime's environment, where neither Strata nor its dependencies exist:
only the standard library, the llama.cpp bindings and the numpy they bring are imported, and this
package is loaded by path under the name `serving`. Hence its relative imports. `__main__` states
what it serves.
"""
