"""The web console: pages for people, rendered on the server.

Every page is a client of the public API with the API key of the person who looks at it.
"""
