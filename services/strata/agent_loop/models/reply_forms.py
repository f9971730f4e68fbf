"""Chooses how a model is asked for a JSON reply, also by earlier refusals. Pure.

Services enforce a schema completely (strict), a schema in part, any JSON object, or nothing. What
a service accepts is one of its quirks; what depends on the model or the schema is learnt from
refusals. The loop validates the reply in any case.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.agent_loop.domain.model.chat import ChatMessage, JsonReply
from strata.agent_loop.domain.model.quirks import ReplyForm
from strata.agent_loop.models.conversation_repair import leading_system
from strata.shared.one_line import one_line
from strata.shared.tag_escapes import escape

_SATISFIES = "that satisfies this JSON schema"
_ANSWER = "Your answer must be one JSON object{}, and nothing else: no text around it.{}"
_BESIDE_CALLS = " Tools are called as usual; the answer is what you write without a call."
_FORMAT = re.compile(
    r"response_?\s?format|text\.format|output_?(?:config|format)|json_?\s?(?:schema|object|mode)"
    r"|structured[ _]outputs?|response[ _]mime|response_schema|\bgrammar\b",
    re.IGNORECASE,
)
# Schemas come from clients; the bound keeps them from accumulating.
_MAX_LEARNT = 1000


@dataclass(slots=True)
class ReplyForms:
    """The forms that one model refused, by schema, so that no schema affects another one."""

    _strongest: dict[str, ReplyForm] = field(default_factory=dict)

    def of(self, reply: JsonReply, strongest: ReplyForm) -> ReplyForm:
        """Returns the form of a JSON request.

        Args:
            reply: The requested JSON reply.
            strongest: The strongest form that the service and the schema allow.
        """
        return min(strongest, self._strongest.get(_digest(reply), strongest))

    def weaken(self, reply: JsonReply, refused: ReplyForm, parameter: str, message: str) -> bool:
        """Uses a weaker form from now on; returns False if an error is not about the form.

        Args:
            reply: The requested JSON reply.
            refused: The form that was refused.
            parameter: The parameter that the error names; empty if it names none.
            message: Text of the error.
        """
        if refused is ReplyForm.PROMPT or not _FORMAT.search(parameter or message):
            return False
        if len(self._strongest) >= _MAX_LEARNT:
            self._strongest.clear()
        # A concurrent request may have learnt more.
        self._strongest[_digest(reply)] = self.of(reply, ReplyForm(refused - 1))
        return True


def with_instruction(
    messages: Sequence[ChatMessage], reply: JsonReply, *, tools: bool
) -> list[ChatMessage]:
    """Returns the messages of a request with an instruction for what the provider does not enforce.

    It follows the system message, so that the cached beginning of the prompt stays the same.

    Args:
        messages: The messages.
        reply: The requested JSON reply.
        tools: Whether tools are offered.
    """
    _, rest = leading_system(messages)
    count = len(messages) - len(rest)
    instruction = ChatMessage.system(instruction_for(reply, tools=tools))
    return [*messages[:count], instruction, *rest]


def instruction_for(reply: JsonReply, *, tools: bool) -> str:
    """Returns the instruction that requests a JSON reply."""
    beside = _BESIDE_CALLS if tools else ""
    if reply.schema is None:
        return _ANSWER.format("", beside)
    about = f" ({escape(one_line(reply.description))})" if reply.description else ""
    # The JSON escapes tags, so that it cannot fake elements of the system message.
    schema = json.dumps(reply.schema, ensure_ascii=False).replace("<", "\\u003c")
    return _ANSWER.format(f"{about} {_SATISFIES}", beside) + f"\n{schema}"


def _digest(reply: JsonReply) -> str:
    text = json.dumps(reply.schema, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
