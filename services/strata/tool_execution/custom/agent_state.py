"""The ``agent_state`` parameter of custom tools.

The source of this module is appended to the source of a tool and runs in the sandbox. So it imports
nothing of Strata, and its names begin with ``_strata_`` or ``_Strata``. Its checks only give early
errors: `agent_memory` checks the changes again outside of the sandbox.
"""

import typing as _strata_types


class _StrataBlock:
    """A memory block. Assign to ``value`` to change it."""

    def __init__(self, block: dict[str, _strata_types.Any]) -> None:
        self.label: str = block["label"]
        self.description: str = block["description"]
        self.limit: int = block["limit"]
        self.read_only: bool = block["read_only"]
        self._value: str = block["value"]

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

    def __init__(self, blocks: list[dict[str, _strata_types.Any]]) -> None:
        self.blocks = [_StrataBlock(block) for block in blocks]

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

    def __init__(self, state: dict[str, _strata_types.Any]) -> None:
        self.id: str = state["id"]
        self.memory = _StrataMemory(state["blocks"])


def _strata_stateful(
    _strata_call_it: _strata_types.Callable[[_StrataAgentState], _strata_types.Any],
    _strata_state_json: dict[str, _strata_types.Any],
) -> _strata_types.Any:
    """Runs the tool; returns its value and the texts of the blocks that it changed."""
    import inspect  # noqa: PLC0415 - this code is appended to the source of a tool

    state = _StrataAgentState(_strata_state_json)
    before = {block["label"]: block["value"] for block in _strata_state_json["blocks"]}

    def result_of(value: _strata_types.Any) -> dict[str, _strata_types.Any]:
        changed = {
            block.label: block.value
            for block in state.memory.blocks
            if block.value != before[block.label]
        }
        return {"value": value, "blocks": changed}

    value = _strata_call_it(state)
    if not inspect.isawaitable(value):
        return result_of(value)

    async def awaited() -> dict[str, _strata_types.Any]:
        return result_of(await value)

    return awaited()
