"""Detects whether a query is about messages of the user or of the assistant."""

from __future__ import annotations

import re

from strata.shared.messages import MessageRole

# Matches the past only: "what would you suggest?" asks for new advice, which depends on what
# the user has said.
_ASSISTANT = re.compile(
    r"\b(?:did|have|had|were)\s+you\b"
    r"|\byou(?:'ve|'d|\s+have|\s+had)?\s+(?:\w+ly\s+|just\s+|once\s+)?"
    r"(?:\w+ed|said|told|gave|given|wrote|written|made|found|thought|meant|taught|sent|shown|drew)\b"
    r"|\byour\s+(?:\w+\s+){0,2}(?:advice|answers?|ideas?|lists?|messages?|opinions?|plans?|proposals?"
    r"|recipes?|recommendations?|repl(?:y|ies)|responses?|stor(?:y|ies)|suggestions?|words)\b"
    r"|\bassistant\b",
    re.IGNORECASE,
)
_USER = re.compile(
    r"\b(?:i|i'm|i've|i'd|i'll|me|my|mine|myself|we|us|our|ours|user|user's|users)\b", re.IGNORECASE
)


def query_role(query: str) -> MessageRole | None:
    """Returns the role whose messages the query is likely about; None if it is unclear.

    Users ask about what they told the agent ("when does my sprint end?"). The answer is in their
    own messages, while the agent's long replies repeat the same words. They also ask about what
    the agent said ("what did you recommend?"). For other queries both roles are equally likely.
    """
    plain_query = query.replace("\u2019", "'")
    if _ASSISTANT.search(plain_query):
        return MessageRole.ASSISTANT
    return MessageRole.USER if _USER.search(plain_query) else None
