"""Textual statements in the form that the driver executes.

SQLAlchemy translates a textual statement once: named parameters become numbered ones. Each further
execution needs only the values in their order. Through SQLAlchemy it would call some 400 functions:
for an execution context, a cursor, a description of the columns and four switches of greenlets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sqlalchemy import TextClause, TextualSelect
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.expression import Executable
from sqlalchemy.types import NullType

from strata.shared.db.statements import with_tenant

# Statements whose text is made for a call are few, and their texts repeat.
_TEXTS = 500


@dataclass(frozen=True, slots=True, eq=False)
class DriverStatement:
    """A statement with numbered parameters.

    Attributes:
        sql: Its text.
        parameters: The names of the parameters, in the order of their numbers.
        columns: The names of the columns of its result; None if the server names them.
    """

    sql: str
    parameters: tuple[str, ...]
    columns: tuple[str, ...] | None

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        """Returns the values of the parameters, in their order; other values are ignored.

        Raises:
            sqlalchemy.exc.InvalidRequestError: A value is missing.
        """
        try:
            return [values[name] for name in self.parameters]
        except KeyError as error:
            message = f"a value is required for the parameter {error.args[0]!r}"
            raise InvalidRequestError(message) from None


class DriverStatements:
    """Translates statements, each of them once.

    The translation depends on nothing but the text, the names of the columns and the parameter that
    is the tenant, so it is never outdated.

    Args:
        dialect: SQLAlchemy's description of the driver.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        # By the parameter that is the tenant, and by statement.
        self._translated: dict[str, WeakKeyDictionary[Executable, DriverStatement | None]] = {}
        self._by_text: OrderedDict[Hashable, DriverStatement] = OrderedDict()

    def translate(self, statement: Executable, tenant: str = "") -> DriverStatement | None:
        """Returns a statement for the driver; None if its values or results are converted.

        Args:
            statement: The statement.
            tenant: Name of the parameter that sets the tenant; empty if none does.

        Raises:
            sqlalchemy.exc.ArgumentError: The statement has no parameter with the name `tenant`.
        """
        translated = self._translated.get(tenant)
        if translated is None:
            translated = self._translated[tenant] = WeakKeyDictionary()
        try:
            return translated[statement]
        except KeyError:
            result = translated[statement] = self._translate(statement, tenant)
            return result

    def of(self, statement: TextClause | TextualSelect, tenant: str = "") -> DriverStatement:
        """Returns a statement whose values and results are not converted, for the driver.

        Raises:
            TypeError: They are converted.
            sqlalchemy.exc.ArgumentError: See `translate`.
        """
        result = self.translate(statement, tenant)
        if result is None:
            raise TypeError("a parameter or a column of the statement has a type")
        return result

    def _translate(self, statement: Executable, tenant: str) -> DriverStatement | None:
        if not isinstance(statement, TextClause | TextualSelect) or not _is_plain(statement):
            return None
        key = (_text_of(statement), _columns_of(statement), tenant)
        result = self._by_text.get(key)
        if result is None:
            result = self._by_text[key] = self._compile(statement, tenant)
            if len(self._by_text) > _TEXTS:
                self._by_text.popitem(last=False)
        else:
            self._by_text.move_to_end(key)
        return result

    def _compile(self, statement: TextClause | TextualSelect, tenant: str) -> DriverStatement:
        bound = with_tenant(statement, tenant) if tenant else statement
        compiled = bound.compile(dialect=self._dialect)
        names: tuple[str, ...] = tuple(getattr(compiled, "positiontup", None) or ())
        return DriverStatement(str(compiled), names, _columns_of(statement))


def _text_of(statement: TextClause | TextualSelect) -> str:
    element = statement if isinstance(statement, TextClause) else statement.element
    assert isinstance(element, TextClause)
    return element.text


def _columns_of(statement: TextClause | TextualSelect) -> tuple[str, ...] | None:
    if isinstance(statement, TextClause):
        return None
    return tuple(column.key for column in statement.selected_columns)


def _is_plain(statement: TextClause | TextualSelect) -> bool:
    """Returns whether no value and no column has a type, so that nothing is converted."""
    if isinstance(statement, TextualSelect):
        element = statement.element
        if any(not isinstance(column.type, NullType) for column in statement.selected_columns):
            return False
    else:
        element = statement
    return isinstance(element, TextClause) and all(
        isinstance(bound, BindParameter)
        and not bound.expanding
        and bound.required
        and isinstance(bound.type, NullType)
        for bound in element.get_children()
    )
