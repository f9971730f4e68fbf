"""Validates keys that are stored for endpoints. Pure; errors never show parts of a key."""

from __future__ import annotations

import json
import re

from strata.shared.json_text import JsonTextError, parse_json

MAX_KEY_CHARS = 4096
MAX_JSON_KEY_CHARS = 16_384
"""Maximum number of characters of a JSON key, including white space. Google's have about 2,400."""

_PLAIN = re.compile(rf"[!-~]{{1,{MAX_KEY_CHARS}}}")
_PEM = re.compile(
    r"-----BEGIN (?:RSA )?PRIVATE KEY-----\s[A-Za-z0-9+/=\s]+-----END (?:RSA )?PRIVATE KEY-----\s*"
)
_EMAIL = re.compile(r"[!-?A-~]{1,200}@[!-?A-~]{1,200}")
# Other fields of such a file are not used, and its addresses are not trusted.
_KEPT = ("type", "project_id", "private_key_id", "private_key", "client_email", "client_id")


def plain_key(key: str) -> str:
    """Returns a key that is sent in a header, and therefore must not have line breaks.

    Raises:
        ValueError: The key is malformed; the message describes valid keys.
    """
    if not _PLAIN.fullmatch(key):
        raise ValueError(
            f"must be at most {MAX_KEY_CHARS} printable ASCII characters without blanks"
        )
    return key


def plain_or_service_account(key: str) -> str:
    """Returns an access token, or the compact JSON of a Google service account.

    Raises:
        ValueError: It is neither; the message names what is missing.
    """
    if not key.lstrip().startswith("{"):
        return plain_key(key)
    if len(key) > MAX_JSON_KEY_CHARS:
        raise ValueError(f"must be at most {MAX_JSON_KEY_CHARS} characters of JSON")
    try:
        account = parse_json(key)
    except JsonTextError:
        account = None
    if not isinstance(account, dict):
        # The parser's error would show a part of the key.
        raise ValueError("must be an access token, or the whole JSON file of a service account")  # noqa: TRY004
    if account.get("type") != "service_account":
        raise ValueError('must have "type": "service_account"; no other type is accepted')
    wrong = [
        name
        for name, form in (("client_email", _EMAIL), ("private_key", _PEM))
        if not isinstance(account.get(name), str) or not form.fullmatch(account[name])
    ]
    if wrong:
        raise ValueError(
            f"must be the JSON file of a service account with its {' and its '.join(wrong)};"
            " create a key for the account in Google Cloud and store the file unchanged"
        )
    return json.dumps({name: account[name] for name in _KEPT if isinstance(account.get(name), str)})
