"""SQL statements with named parameters, in the form that the driver executes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from strata.shared.db.policies import TENANT_TYPE

# ``:name``, but neither a cast (``::text``) nor a colon after a backslash.
_PARAMETER = re.compile(r"(?<![:\w\\]):(\w+)(?![:\w])")
_ESCAPED_COLON = re.compile(r"\\(:\w*)(?![:\w])")
# Statements whose text is made for a call are few, and their texts repeat.
_MOST_STATEMENTS = 2_000


class SqlStatement:
    """A statement with numbered parameters. Create it with `sql`.

    Attributes:
        text: Its text, as PostgreSQL reads it.
        parameters: The names of the parameters, in the order of their numbers.
    """

    __slots__ = ("_of_tenants", "_source", "parameters", "text")

    def __init__(self, source: str, tenant: str = "") -> None:
        numbers: dict[str, int] = {}

        def number(match: re.Match[str]) -> str:
            name = match[1]
            cast = f"::{TENANT_TYPE}" if name == tenant else ""
            return f"${numbers.setdefault(name, len(numbers) + 1)}{cast}"

        self._source = source
        self._of_tenants: dict[str, SqlStatement] = {}
        self.text = _ESCAPED_COLON.sub(r"\1", _PARAMETER.sub(number, source))
        self.parameters = tuple(numbers)

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        """Returns the values of the parameters, in their order; other values are ignored.

        Raises:
            ValueError: A value is missing.
        """
        try:
            return [values[name] for name in self.parameters]
        except KeyError as error:
            message = f"a value is required for the parameter {error.args[0]!r}"
            raise ValueError(message) from None

    def of_tenant(self, parameter: str) -> SqlStatement:
        """Returns the statement such that one of its parameters sets the tenant.

        Args:
            parameter: Name of the parameter. It gets the type `TENANT_TYPE`.

        Raises:
            ValueError: The statement has no such parameter.
        """
        if parameter not in self._of_tenants:
            if parameter not in self.parameters:
                raise ValueError(f"the statement has no parameter {parameter!r}")
            self._of_tenants[parameter] = SqlStatement(self._source, parameter)
        return self._of_tenants[parameter]


@lru_cache(maxsize=_MOST_STATEMENTS)
def sql(text: str) -> SqlStatement:
    r"""Returns a statement.

    Args:
        text: Its text. A parameter is written ``:name``, a colon before a word ``\:``.
    """
    return SqlStatement(text)
