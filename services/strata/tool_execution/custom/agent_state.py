"""What a custom tool with a parameter ``agent_state`` is given.

The text of this module is put behind the source of a tool and runs in the sandbox with it: it
stands alone, and its names begin with ``_strata_`` or ``_Strata``. Nothing here is a
guard: what a tool says of blocks is checked again outside, by `agent_memory`.
"""

import typing as _strata_types


class _StrataBlock:
    """A memory block; to change it, assign to ``value``."""

    def __init__(self, given: dict[str, _strata_types.Any]) -> None:
        self.label: str = given["label"]
        self.description: str = given["description"]
        self.limit: int = given["limit"]
        self.read_only: bool = given["read_only"]
        self._value: str = given["value"]

    @property
    def value(self) -> str:
        return self._value

    @value.setter
    def value(self, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"The value of a memory block is text, not {type(value).__name__}.")
        if value != self._value and self.read_only:
            raise ValueError(f"The memory block {self.label!r} is read-only.")
        if len(value) > self.limit:
            raise ValueError(
                f"The memory block {self.label!r} holds at most {self.limit} characters,"
                f" not {len(value)}."
            )
        self._value = value

    def __repr__(self) -> str:
        return f"Block(label={self.label!r}, value={self._value!r})"


class _StrataMemory:
    """The memory blocks of the agent, in the order in which its model sees them."""

    def __init__(self, given: list[dict[str, _strata_types.Any]]) -> None:
        self.blocks = [_StrataBlock(each) for each in given]

    def list_block_labels(self) -> list[str]:
        return [block.label for block in self.blocks]

    def get_block(self, label: str) -> _StrataBlock:
        for block in self.blocks:
            if block.label == label:
                return block
        raise KeyError(
            f"The agent has no memory block {label!r}; it has {self.list_block_labels()}."
        )

    def update_block_value(self, label: str, value: str) -> None:
        self.get_block(label).value = value


class _StrataAgentState:
    """The agent on whose behalf the tool runs."""

    def __init__(self, given: dict[str, _strata_types.Any]) -> None:
        self.id: str = given["id"]
        self.memory = _StrataMemory(given["blocks"])


def _strata_stateful(
    _strata_call_it: _strata_types.Callable[[_StrataAgentState], _strata_types.Any],
    _strata_given: dict[str, _strata_types.Any],
) -> _strata_types.Any:
    """Runs the tool; returns its value, and the blocks whose text is another one now."""
    import inspect  # noqa: PLC0415 - it stands behind the source of a tool

    state = _StrataAgentState(_strata_given)
    before = {each["label"]: each["value"] for each in _strata_given["blocks"]}

    def told(value: _strata_types.Any) -> dict[str, _strata_types.Any]:
        changed = {
            block.label: block.value
            for block in state.memory.blocks
            if block.value != before[block.label]
        }
        return {"value": value, "blocks": changed}

    value = _strata_call_it(state)
    if not inspect.isawaitable(value):
        return told(value)

    async def later() -> dict[str, _strata_types.Any]:
        return told(await value)

    return later()
