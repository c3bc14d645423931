"""What only shows without a server around it."""

import asyncio

import pytest
from fastapi import Request
from starlette.types import Message

from api import body
from api.errors import Refused
from api.prefer import WAIT_LIMIT_S, wait_seconds


def test_a_body_that_does_not_arrive_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_TIMEOUT_S", 0.05)

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()  # the caller has gone quiet

    headers = [(b"content-type", b"application/json")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    with pytest.raises(Refused) as refused:
        asyncio.run(body.read_json(request))
    assert (refused.value.code, refused.value.status) == ("body_timeout", 408)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ([], 0),
        (["wait=10"], 10),
        (["WAIT=10"], 10),
        (['wait="10"'], 10),
        (["wait = 10"], 10),
        (["respond-async, wait=10"], 10),
        (["respond-async", "wait=10"], 10),
        (["wait=10; foo=bar"], 10),
        (["wait=5, wait=10"], 5),
        ([f"wait={WAIT_LIMIT_S + 1}"], WAIT_LIMIT_S),
        (["wait=999999999"], WAIT_LIMIT_S),
        (["wait=9999999999999999999999"], 0),
        (["wait=1.5"], 0),
        (["wait=-5"], 0),
        (["waiting=5"], 0),
    ],
)
def test_the_wait_is_read_from_the_preferences_and_bounded(values: list[str], seconds: int) -> None:
    assert wait_seconds(values) == seconds
