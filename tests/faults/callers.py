"""Callers who order all the while: they repeat a call under its key until it is answered, as a client should.

Anything that is neither an answer that was agreed on nor a server that is away is noted as a trouble.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.faults.orders import Order

CALLERS = 3
CALL_S = 6.0
PATIENCE_S = 150.0
REST_S = 0.25
AWAY = 503
LOOK_S = 0.05


class GaveUp(Exception):
    """The server did not answer for longer than any fault lasts."""


@dataclass(slots=True)
class Told:
    """What the callers were told; their threads write, one entry each.

    Attributes:
        jobs: The order of each accepted job that was sent singly, by its id.
        batches: The order of each accepted batch, by its id.
        ends: State and files of the jobs that were seen in a terminal state, by id.
        slowest_s: The longest time that one call waited for its answer, whatever that was.
    """

    jobs: dict[str, Order] = field(default_factory=dict)
    batches: dict[str, Order] = field(default_factory=dict)
    ends: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    @property
    def accepted(self) -> int:
        """Jobs that were answered with 202, the rows of batches among them."""
        return len(self.jobs) + sum(order.jobs for order in self.batches.values())

    def note_end(self, job: dict[str, Any]) -> None:
        """Remember a job as it is shown, if it has ended; nothing of that may change."""
        if job["status"] not in ("completed", "failed", "canceled", "expired"):
            if job["id"] in self.ends:
                self.changed.append(f"{job['id']} was {self.ends[job['id']][0]} and is {job['status']}")
            return
        shown = (job["status"], tuple(item["sha256"] for item in job["artifacts"]))
        if self.ends.setdefault(job["id"], shown) != shown:
            self.changed.append(f"{job['id']} was {self.ends[job['id']]} and is {shown}")


class Callers:
    """Threads that send the orders in time, and one that reads what came of them."""

    def __init__(self, url: str, orders: Sequence[Order], seconds: float) -> None:
        self.told = Told()
        self._url = url
        self._pool = ThreadPoolExecutor(CALLERS * 2, thread_name_prefix="caller")
        self._stop = threading.Event()
        self._due = _in_time(orders, seconds)
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._order, daemon=True) for _ in range(CALLERS)]
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        for thread in (*self._threads, self._reader):
            thread.start()

    @property
    def done(self) -> bool:
        """Whether every order was answered or given up."""
        return not any(thread.is_alive() for thread in self._threads)

    def finish(self) -> Told:
        """Wait for the callers and return what they were told."""
        for thread in self._threads:
            thread.join()
        self._stop.set()
        self._reader.join()
        self._pool.shutdown()
        return self.told

    def _order(self) -> None:
        with httpx2.Client(base_url=self._url, timeout=CALL_S) as http:
            while (order := self._next()) is not None:
                try:
                    self._perform(Caller(http, self.told), order)
                except GaveUp as error:
                    self.told.troubles.append(str(error))

    def _next(self) -> Order | None:
        with self._lock:
            return next(self._due, None)

    def _perform(self, caller: "Caller", order: Order) -> None:
        first, *others = self._send(caller, order)
        for other in others:
            if other != first:
                self.told.doubled.append(f"one key, {order.key}, gave {first} and {other}")
        (self.told.batches if order.is_batch else self.told.jobs)[first] = order
        if order.how == "other body":
            caller.check_refusal(order)
        if order.how == "cancel":
            time.sleep(order.wait_s)
            caller.cancel(first, order)

    def _send(self, caller: "Caller", order: Order) -> list[str]:
        match order.how:
            case "at once":
                return list(self._pool.map(lambda _: self._with_own_line(order), range(2)))
            case "repeat":
                return [caller.send(order), caller.send(order)]
            case _:
                return [caller.send(order)]

    def _with_own_line(self, order: Order) -> str:
        with httpx2.Client(base_url=self._url, timeout=CALL_S) as http:
            return Caller(http, self.told).send(order)

    def _read(self) -> None:
        """Look at the newest jobs again and again, past any outage."""
        with httpx2.Client(base_url=self._url, timeout=CALL_S) as http:
            while not self._stop.wait(LOOK_S):
                with suppress(httpx2.TransportError):
                    answer = http.get("/v1/jobs", params={"limit": 40})
                    for job in answer.json()["data"] if answer.status_code == 200 else []:
                        self.told.note_end(job)


class Caller:
    """One connection, and the calls that are repeated until they are answered."""

    def __init__(self, http: httpx2.Client, told: Told) -> None:
        self._http = http
        self._told = told

    def send(self, order: Order) -> str:
        """Order it and return the id."""
        path = "/v1/batches" if order.is_batch else "/v1/jobs"
        return str(self._until_answered(lambda: self._post(path, order.body, order.key), 202).json()["id"])

    def check_refusal(self, order: Order) -> None:
        """Send another body under the key of an order, which must be refused."""
        other = order.body | {"seed": order.body["seed"] + 1}
        self._until_answered(lambda: self._post("/v1/jobs", other, order.key), 422)

    def cancel(self, order_id: str, order: Order) -> None:
        path = "batches" if order.is_batch else "jobs"
        self._until_answered(lambda: self._http.post(f"/v1/{path}/{order_id}/cancel"), 200, 202, 409)

    def _post(self, path: str, body: dict[str, Any], key: str) -> httpx2.Response:
        return self._http.post(path, json=body, headers={"Idempotency-Key": key})

    def _until_answered(self, call: Callable[[], httpx2.Response], *wanted: int) -> httpx2.Response:
        deadline = time.monotonic() + PATIENCE_S
        last = "nothing"
        while time.monotonic() < deadline:
            began = time.monotonic()
            try:
                answer = call()
            except httpx2.TransportError as error:
                last = type(error).__name__
            else:
                self._told.slowest_s = max(self._told.slowest_s, time.monotonic() - began)
                if answer.status_code in wanted:
                    return answer
                last = f"{answer.status_code} {answer.text[:300]}"
                self._check_away(answer)
            time.sleep(REST_S)
        raise GaveUp(f"a caller gave up after {PATIENCE_S:g} s; the last answer was {last}")

    def _check_away(self, answer: httpx2.Response) -> None:
        """Note any answer other than "try again later", said as it was agreed on."""
        kind = answer.headers.get("content-type", "")
        if answer.status_code != AWAY or "retry-after" not in answer.headers or "problem+json" not in kind:
            self._told.troubles.append(
                f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:300]}"
            )


def _in_time(orders: Sequence[Order], seconds: float) -> Iterator[Order]:
    """Each order when it is due, evenly over the time; the wait is the caller's own."""
    began = time.monotonic()
    for number, order in enumerate(orders):
        due = began + seconds * number / len(orders)
        time.sleep(max(0.0, due - time.monotonic()))
        yield order
