"""The body of a request, checked against a model of pydantic."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from strata.gateway.http.openai_api.errors import ApiError
from strata.shared.json_text import JsonTextError, parse_request_json

# The names of the alternatives of a union, which mean nothing to the client. In the location of an
# error they follow an index of a list, or one of the fields in `_UNIONS`.
_ALTERNATIVES = frozenset(
    {
        *("str", "text", "image_url", "input_text", "input_image", "output_text"),
        *("message", "assistant", "function_call", "function_call_output", "reasoning"),
        "ConversationName",
    }
)
_UNIONS = frozenset({"content", "input", "output", "conversation"})


class Body(BaseModel):
    """A part of a body. What it does not name is accepted and ignored."""

    model_config = ConfigDict(extra="allow", frozen=True)

    def ignored_parameters(self, checked: Container[str]) -> Sequence[str]:
        """Returns the names of the parameters that have a value and no effect.

        Args:
            checked: Parameters that only have an accepted value.
        """
        extra = self.model_extra or {}
        return [name for name in extra if extra[name] is not None and name not in checked]


AnyBody = TypeVar("AnyBody", bound=Body)


def parse_body(
    body: bytes,
    kind: type[AnyBody],
    only: Mapping[str, tuple[Any, ...]],
    reasons: Mapping[str, str],
) -> AnyBody:
    """Returns the body of a request.

    Args:
        body: JSON.
        kind: The required type.
        only: The only values of parameters that an agent cannot take from a request.
        reasons: The reasons, by parameter, where there is more to say.

    Raises:
        ApiError: It is not valid, or has another value of such a parameter.
    """
    try:
        values = parse_request_json(body)
    except JsonTextError as error:
        raise ApiError(f"The body is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ApiError("The body must be a JSON object.")
    for name, allowed in only.items():
        if values.get(name) not in allowed:
            reason = reasons.get(name, "")
            raise ApiError(
                f"Agents do not accept '{name}' in a request; leave it out."
                + (f" {reason}" if reason else ""),
                param=name,
                code="unsupported_parameter",
            )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        # The alternative of a union that fits best is the one whose error is nested deepest.
        problems = error.errors(include_url=False, include_input=False)
        problem = max(problems, key=lambda candidate: len(candidate["loc"]))
        param = _place(problem["loc"])
        raise ApiError(f"'{param}' is not valid: {problem['msg']}.", param=param) from error


def _place(location: Sequence[str | int]) -> str:
    path = ""
    in_union = False
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
            in_union = True
        elif in_union and ("[" in step or step in _ALTERNATIVES):
            # One name of an alternative follows the field; after it comes a field again.
            in_union = "[" in step
        else:
            path += f".{step}" if path else step
            in_union = step in _UNIONS
    return path
