"""Times and bounds of the dispatch of runs, the same in every deployment.

`strata.gateway.compose` reads them once, when it builds the gateway.
"""

from __future__ import annotations

LEASE_S = 10.0
"""Seconds without a heartbeat after which a run is taken over.

With a shorter time a paused process would lose its runs; with a longer one clients would notice the
death of a gateway.
"""
HEARTBEAT_S = 3.0
"""Pause between two renewals of the leases: a third of the lease, so that two may fail."""
POLL_S = 1.0
"""Pause between two look-ups of runs, schedules and deliveries that no gateway holds.

A gateway is notified of its own work, so this delays only the work of other gateways.
"""
FOLLOW_POLL_S = 0.1
"""Pause between two polls of runs that are followed here and executed elsewhere.

One statement serves all followers; a reader does not notice a tenth of a second.
"""
MAX_ATTEMPTS = 8
"""Failed dispatches without progress after which a run fails.

A gateway that died with the run counts as one. An unavailable service does not count: the run waits
for it until its deadline.
"""
AGENT_CACHE_S = 60.0
"""Seconds to cache that an agent exists: longer than the pause between two messages of a chat."""
