"""Whose words a question asks for."""

from __future__ import annotations

import re

from strata.recall.domain.messages import Role

# What was said, not what could be: "what would you suggest?" asks for advice to come, which
# hangs on what the person has told.
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


def query_role(query: str) -> Role | None:
    """Returns the role whose messages the query is likely about; None if it does not tell.

    People ask an agent about what they told it ("when does my sprint end?"), which is said in
    their own messages, while the agent's long replies use the same words again and again. They
    also ask for what it said ("what did you recommend?"). Of other people's affairs, and of
    plain words, either may have spoken.
    """
    asked = query.replace("\u2019", "'")
    if _ASSISTANT.search(asked):
        return Role.ASSISTANT
    return Role.USER if _USER.search(asked) else None
