"""Callers of services: the context of a call for a project, with or without a signed token."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from strata.shared import context
from strata.shared.auth import TokenSigner, TokenVerifier, generate_key_pair
from strata.shared.context import Caller, RequestContext
from strata.shared.ids import new_id
from strata.shared.scopes import Scope


def as_project(project_id: str = "", scopes: Collection[Scope] = ()) -> RequestContext:
    """Returns the context of a call for a project, by default a new one."""
    project_id = project_id or new_id("project")
    return RequestContext(caller=Caller(new_id("org"), project_id, "key", frozenset(scopes)))


@contextmanager
def new_project(scopes: Collection[Scope] = ()) -> Iterator[str]:
    """Makes all calls inside the block for a new project; yields its id."""
    project_id = new_id("project")
    with context.use(as_project(project_id, scopes)):
        yield project_id


@dataclass
class TokenKeys:
    """The keys with which the tokens of callers are signed and verified."""

    private: str
    public: str

    @classmethod
    def generate(cls) -> Self:
        """Returns new keys."""
        return cls(*generate_key_pair())

    @cached_property
    def signer(self) -> TokenSigner:
        return TokenSigner(self.private)

    @cached_property
    def verifier(self) -> TokenVerifier:
        return TokenVerifier(self.public)

    def context(
        self,
        project_id: str,
        run_id: str | None = None,
        *,
        scopes: Collection[str] = ("write",),
        principal: str = "key-1",
    ) -> RequestContext:
        """Returns the context of a call with a signed token of a project."""
        token = self.signer.mint("org-1", project_id, principal, scopes, run_id)
        return RequestContext(caller=self.verifier.verify(token), request_id="test")
