"""The number of examples for property tests on which security or durability depends.

`make test` tries half as many for the other properties; `make test-slow` tries 1000 for all.
"""

from __future__ import annotations

from hypothesis import settings

security_examples = settings(max_examples=max(settings().max_examples, 100))
durability_examples = security_examples
