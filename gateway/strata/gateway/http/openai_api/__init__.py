"""The API of OpenAI for clients that speak it: a model is an agent, and a response is a run.

An agent keeps its conversation, so it is sent what is new in a request: the messages after the last
one of the assistant. Its system prompt, its tools and its model settings are its own.
"""
