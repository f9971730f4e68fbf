"""Converts the JSON arguments of a call to the annotated types of a custom tool.

Examples are dataclasses, enums, dates and sets. Values whose annotation is unknown stay unchanged.

The client uses this module for its client tools. The sandbox loads it once, before the first
call, and each call of a custom tool imports it there. So it imports nothing of Strata, imports
inside its functions, uses names that begin with ``_strata_``, and runs on every Python version that
tools run on.
"""

import typing as _strata_typing


def _strata_call(
    _strata_function: _strata_typing.Any, _strata_arguments: dict[str, _strata_typing.Any]
) -> _strata_typing.Any:
    hints = _strata_hints(_strata_function)
    converted = {
        name: _strata_convert(value, hints[name]) if name in hints else value
        for name, value in _strata_arguments.items()
    }
    return _strata_function(**converted)


def _strata_hints(_strata_holder: _strata_typing.Any) -> dict[str, _strata_typing.Any]:
    """Returns the types of a function's parameters, or of the members of a class.

    A type that cannot be resolved is Any: its name may exist only for type checkers. The others
    stay known.
    """
    import importlib  # noqa: PLC0415 - see above
    import sys  # noqa: PLC0415
    import types  # noqa: PLC0415
    import typing  # noqa: PLC0415

    try:
        return typing.get_type_hints(_strata_holder)
    except Exception:  # noqa: BLE001, S110 - each type is resolved separately below
        pass
    hints: dict[str, typing.Any] = {}
    is_class = isinstance(_strata_holder, type)
    for part in reversed(_strata_holder.__mro__) if is_class else [_strata_holder]:
        function = part
        while not is_class and hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        module = sys.modules.get(getattr(part, "__module__", ""))
        names = getattr(function, "__globals__", None) or getattr(module, "__dict__", {})
        try:
            annotations = getattr(part, "__annotations__", {})
        except NameError:
            # Since Python 3.14, annotations are evaluated when they are first read.
            library: typing.Any = importlib.import_module("annotationlib")
            annotations = library.get_annotations(part, format=library.Format.FORWARDREF)
        for name, annotation in annotations.items():
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            try:
                hints.update(typing.get_type_hints(alone, names))
            except Exception:  # noqa: BLE001 - the type cannot be resolved
                hints[name] = typing.Any
    return hints


def _strata_convert(  # noqa: C901
    value: _strata_typing.Any, kind: _strata_typing.Any
) -> _strata_typing.Any:
    import collections.abc  # noqa: PLC0415
    import dataclasses  # noqa: PLC0415
    import datetime as dt  # noqa: PLC0415
    import enum  # noqa: PLC0415
    import types  # noqa: PLC0415
    import typing  # noqa: PLC0415

    while type(kind).__name__ == "TypeAliasType":
        kind = kind.__value__
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _strata_convert(value, inside[0])
    if origin is typing.Union or origin is types.UnionType:
        failure = None
        for option in inside:
            if _strata_matches(value, option):
                try:
                    return _strata_convert(value, option)
                except ValueError as error:
                    # Any text matches a date; it may be meant for a later option.
                    failure = failure or error
        if failure is not None:
            raise failure
        return value
    if isinstance(value, list):
        whole = origin or kind
        member = inside[0] if inside else typing.Any
        if whole is tuple:
            if len(inside) == len(value) and inside[-1:] != (...,):
                return tuple(
                    _strata_convert(element, one)
                    for element, one in zip(value, inside, strict=True)
                )
            return tuple(_strata_convert(element, member) for element in value)
        if whole in (set, frozenset):
            return whole(_strata_convert(element, member) for element in value)
        if whole is list or (isinstance(whole, type) and issubclass(list, whole)):
            return [_strata_convert(element, member) for element in value]
        return value
    if isinstance(value, dict) and len(inside) == 2 and isinstance(origin, type):
        if issubclass(dict, origin) or issubclass(origin, collections.abc.Mapping):
            return {name: _strata_convert(element, inside[1]) for name, element in value.items()}
        return value
    if not isinstance(kind, type):
        return value
    if issubclass(kind, enum.Enum):
        return kind(value)
    if isinstance(value, dict):
        if hasattr(kind, "model_validate"):
            return kind.model_validate(value)
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            hints = _strata_hints(kind)
            converted = {
                name: _strata_convert(element, hints[name]) for name, element in value.items()
            }
            return kind(**converted)
    if isinstance(value, str) and kind in (dt.datetime, dt.date):
        return kind.fromisoformat(value)
    return value


def _strata_matches(  # noqa: C901
    value: _strata_typing.Any, kind: _strata_typing.Any
) -> bool:
    import dataclasses  # noqa: PLC0415
    import datetime as dt  # noqa: PLC0415
    import enum  # noqa: PLC0415
    import types  # noqa: PLC0415
    import typing  # noqa: PLC0415

    while type(kind).__name__ == "TypeAliasType":
        kind = kind.__value__
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return _strata_matches(value, inside[0])
    if kind is typing.Any or kind is object:
        return True
    if origin is typing.Union or origin is types.UnionType:
        return any(_strata_matches(value, option) for option in inside)
    if origin is typing.Literal:
        return any(value == option and type(value) is type(option) for option in inside)
    if kind is type(None) or value is None:
        return kind is type(None) and value is None
    whole: _strata_typing.Any = origin or kind
    if not isinstance(whole, type):
        return False
    if issubclass(whole, enum.Enum):
        return any(value == option.value and type(value) is type(option.value) for option in whole)
    if isinstance(value, list):
        if whole is tuple and inside and inside[-1] is not ...:
            return len(value) == len(inside) and all(map(_strata_matches, value, inside))
        # issubclass raises TypeError for a TypedDict.
        if typing.is_typeddict(whole):
            return False
        if whole in (tuple, set, frozenset) or issubclass(list, whole):
            return not inside or all(_strata_matches(element, inside[0]) for element in value)
        return False
    if isinstance(value, dict):
        if hasattr(whole, "model_fields"):
            hints = {name: one.annotation for name, one in whole.model_fields.items()}
            needed = {name for name, one in whole.model_fields.items() if one.is_required()}
        elif typing.is_typeddict(whole):
            hints, needed = _strata_hints(whole), set(getattr(whole, "__required_keys__", ()))
        elif dataclasses.is_dataclass(whole):
            hints = _strata_hints(whole)
            missing = dataclasses.MISSING
            needed = {
                one.name
                for one in dataclasses.fields(whole)
                if one.init and one.default is missing and one.default_factory is missing
            }
        else:
            return issubclass(dict, whole) and (
                not inside or all(_strata_matches(element, inside[1]) for element in value.values())
            )
        return needed <= set(value) <= set(hints) and all(
            _strata_matches(element, hints[name]) for name, element in value.items()
        )
    if whole in (dt.datetime, dt.date):
        return isinstance(value, str)
    if whole is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is whole
