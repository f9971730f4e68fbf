"""The ways to ask a model for a reply in JSON, and what models have refused of them. Pure.

Services differ in what they enforce: a schema in full (strict), a schema as far as they can, any
JSON object, or nothing. What a service is known to take is a quirk of it; what depends on the model
or on the schema is learnt from refusals. Whatever a provider enforces, the loop checks the reply.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from strata.agent_loop.models.domain import ChatMessage, JsonReply
from strata.agent_loop.models.quirks import ReplyForm
from strata.agent_loop.models.wire import leading_system
from strata.shared.escaping import escape
from strata.shared.one_line import one_line

_SATISFIES = "that satisfies this JSON schema"
_ANSWER = "Your answer must be one JSON object{}, and nothing else: no text around it.{}"
_BESIDE_CALLS = " Tools are called as usual; the answer is what you write without a call."
_FORMAT = re.compile(
    r"response_?\s?format|text\.format|output_?(?:config|format)|json_?\s?(?:schema|object|mode)"
    r"|structured[ _]outputs?|response[ _]mime|response_schema|\bgrammar\b",
    re.IGNORECASE,
)
# Schemas come from clients; a bound is kept so that they do not pile up.
_MAX_LEARNT = 1000


@dataclass(slots=True)
class ReplyForms:
    """What one model has refused. It is kept by schema, so that no schema weakens another one."""

    _strongest: dict[str, ReplyForm] = field(default_factory=dict)

    def of(self, reply: JsonReply, strongest: ReplyForm) -> ReplyForm:
        """Returns how a reply is asked for.

        Args:
            reply: What is asked for.
            strongest: The strongest form that the service and the schema allow.
        """
        return min(strongest, self._strongest.get(_digest(reply), strongest))

    def weaken(self, reply: JsonReply, refused: ReplyForm, parameter: str, message: str) -> bool:
        """Asks in a weaker form from now on; False if an error is not about the form.

        Args:
            reply: What was asked for.
            refused: The form that was refused.
            parameter: The parameter that the error is about; empty if it does not say.
            message: Text of the error.
        """
        if refused is ReplyForm.PROMPT or not _FORMAT.search(parameter or message):
            return False
        if len(self._strongest) >= _MAX_LEARNT:
            self._strongest.clear()
        # Another request may have found out more meanwhile.
        self._strongest[_digest(reply)] = self.of(reply, ReplyForm(refused - 1))
        return True


def with_instruction(
    messages: Sequence[ChatMessage], reply: JsonReply, *, tools: bool
) -> list[ChatMessage]:
    """Returns the messages of a request with what the provider does not enforce as a rule.

    It follows the system message, so that the cached beginning of the prompt stays the same.

    Args:
        messages: The messages.
        reply: What is asked for.
        tools: Whether tools are offered.
    """
    _, rest = leading_system(messages)
    count = len(messages) - len(rest)
    instruction = ChatMessage.system(instruction_for(reply, tools=tools))
    return [*messages[:count], instruction, *rest]


def instruction_for(reply: JsonReply, *, tools: bool) -> str:
    """Returns the words that ask for a reply in JSON."""
    beside = _BESIDE_CALLS if tools else ""
    if reply.schema is None:
        return _ANSWER.format("", beside)
    about = f" ({escape(one_line(reply.description))})" if reply.description else ""
    # The same JSON without the tags of the system message.
    schema = json.dumps(reply.schema, ensure_ascii=False).replace("<", "\\u003c")
    return _ANSWER.format(f"{about} {_SATISFIES}", beside) + f"\n{schema}"


def _digest(reply: JsonReply) -> str:
    text = json.dumps(reply.schema, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
