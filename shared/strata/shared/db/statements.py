"""SQL statements whose result columns are declared, and statements of a single tenant."""

from __future__ import annotations

from sqlalchemy import TextClause, TextualSelect, bindparam, column, text
from sqlalchemy.types import UserDefinedType

from strata.shared.db.policies import TENANT_TYPE


class _Tenant(UserDefinedType[str]):
    """The type `TENANT_TYPE`: its parameter is cast to it in the text of the statement."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_options: object) -> str:
        return TENANT_TYPE


def with_tenant(statement: TextClause | TextualSelect, name: str) -> TextClause | TextualSelect:
    """Returns the statement such that one of its parameters binds it to a tenant.

    Args:
        statement: The statement.
        name: Name of the parameter.

    Raises:
        sqlalchemy.exc.ArgumentError: The statement has no such parameter.
    """
    return statement.bindparams(bindparam(name, type_=_Tenant()))


def text_with_columns(sql: str, columns: str) -> TextualSelect:
    """Returns a statement with declared columns, so that no result has to determine them.

    SQLAlchemy looks at every column of every result of a bare `text`: about 6 calls of Python
    functions each, where it otherwise does so once for a statement. Use it for statements that run
    in every turn, and for those with many columns.

    Args:
        sql: The statement, with parameters as in `text`.
        columns: The items of its select list, in their order, as in SQL. Expressions have a name
            and contain no comma; ``*`` is not allowed, since its columns are not known beforehand.

    Raises:
        ValueError: An item of `columns` has no name, or two have the same one.
    """
    names = column_names(columns)
    if len(set(names)) < len(names):
        raise ValueError(f"two columns have the same name: {', '.join(names)}")
    return text(sql).columns(*map(column, names))


def column_names(columns: str) -> list[str]:
    """Returns the names that the items of a select list have in the result.

    Args:
        columns: As for `text_with_columns`.

    Raises:
        ValueError: An item has no name.
    """
    names = [item.split()[-1].rpartition(".")[2] for item in columns.split(",")]
    nameless = [name for name in names if not name.isidentifier()]
    if nameless:
        raise ValueError(f"columns without a name: {', '.join(nameless)}")
    return names
