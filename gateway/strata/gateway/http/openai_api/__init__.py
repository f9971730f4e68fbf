"""OpenAI's API for its clients: a model is an agent, and a response is a run.

An agent stores its conversation, so only the new part of a request is sent to it: the messages
after the last assistant message. Its system prompt, its tools and its model settings are its own.
"""
