"""An agent's memory as a server of the Model Context Protocol: a client of a gateway, no more."""
