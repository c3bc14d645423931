"""The Idempotency-Key header: which keys are taken, and what makes two bodies the same."""

import hashlib
import json
import re

from fastapi import Request, Response

from api.errors import Refused

KEY_LIMIT = 255
REPLAYED = "Idempotent-Replayed"
_KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_LIMIT}}}")


def read_key(request: Request) -> str | None:
    """Return the call's idempotency key, or None when it names none.

    Raises:
        Refused: 400 for an empty, long, repeated or unprintable key.
    """
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1:
        raise Refused("bad_header", "Idempotency-Key stands twice in this call")
    if not _KEY.fullmatch(values[0]):
        rule = f"1 to {KEY_LIMIT} printable ASCII characters without spaces"
        raise Refused("bad_header", f"Idempotency-Key must be {rule}")
    return values[0]


def tell_made(response: Response, url: str, *, replayed: bool) -> None:
    """Say where what the call made can be read, and whether an earlier call with its key has made it."""
    response.headers["Location"] = url
    if replayed:
        response.headers[REPLAYED] = "true"


def fingerprint(body: dict[str, object]) -> str:
    """Return a digest of ``body`` as the caller sent it, whatever the order of its keys.

    The plan is no part of it: a seed drawn anew for the second call must not make it another order.
    """
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
