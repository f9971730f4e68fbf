"""SQLAlchemy's connections and engines for asyncio, without its object-relational mapper.

The package ``sqlalchemy.ext.asyncio`` also loads the sessions of the mapper, which Strata does not
use: 45 modules, which take 6 MB and a sixth of the CPU time in which a service starts.
"""

from __future__ import annotations

from strata.shared.package_stand_in import stand_in

with stand_in("sqlalchemy.ext.asyncio"):
    from sqlalchemy.ext.asyncio.engine import AsyncConnection, AsyncEngine, create_async_engine

__all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]
