"""Organizations, projects and keys, and the authentication of callers."""

from __future__ import annotations

from dataclasses import dataclass

from strata.gateway.auth.authenticator import ApiKeyAuthenticator
from strata.gateway.auth.domain import Hasher
from strata.gateway.auth.partitions import ProjectPartitions
from strata.gateway.auth.policy import policy_of
from strata.gateway.auth.rate import RateLimiter
from strata.gateway.auth.run_tokens import RunTokenAuthenticator
from strata.gateway.auth.store import PostgresAdminStore, PostgresKeyLookup
from strata.gateway.compose.databases import PartitionDatabases
from strata.gateway.project_callers import ProjectCallers
from strata.gateway.registry import public_services
from strata.gateway.settings import GatewaySettings
from strata.shared.auth import TokenSigner
from strata.shared.service import Wiring


@dataclass(frozen=True, slots=True)
class AuthParts:
    """The parts of the gateway that use the tables of organizations, projects and keys.

    Attributes:
        store: Stores organizations, projects and keys.
        project_partitions: Finds the partition of a project.
        project_callers: Makes callers for background work of a project.
        api_keys: Authenticates callers by API key.
        authenticator: Authenticates callers by API key or by the token of a run.
    """

    store: PostgresAdminStore
    project_partitions: ProjectPartitions
    project_callers: ProjectCallers
    api_keys: ApiKeyAuthenticator
    authenticator: RunTokenAuthenticator


def build_auth(
    settings: GatewaySettings,
    wiring: Wiring,
    signer: TokenSigner,
    hasher: Hasher,
    databases: PartitionDatabases,
) -> AuthParts:
    """Builds the parts.

    Args:
        settings: The settings of the gateway.
        wiring: The shared parts of the process.
        signer: Signs the tokens for calls to the services.
        hasher: Hashes API keys.
        databases: The databases of the default partition, which has the tables of organizations,
            projects and keys of all partitions.
    """
    # The tables are read before the partition of the caller is known.
    database = databases.database.of_any_partition()
    project_partitions = ProjectPartitions(database)
    limiter = RateLimiter(
        wiring.clock, per_second=settings.calls_per_second, burst=settings.call_burst
    )
    api_keys = ApiKeyAuthenticator(
        PostgresKeyLookup(databases.worker, project_partitions.note),
        hasher,
        signer,
        policy_of(public_services()),
        limiter,
        wiring.clock,
        ttl_s=settings.key_cache_s,
    )
    return AuthParts(
        store=PostgresAdminStore(database, databases.worker, hasher, settings.project_partitions),
        project_partitions=project_partitions,
        project_callers=ProjectCallers(signer, database),
        api_keys=api_keys,
        authenticator=RunTokenAuthenticator(api_keys, wiring.verifier, limiter),
    )
