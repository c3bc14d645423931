"""A follower: a process that computes what its leader computes, as another rank of the same worker.

    python -m pipeline.follower RANK DESCRIPTOR MODEL

It is started by `pipeline.team` and told everything over the socket DESCRIPTOR; MODEL is for those who read
the list of processes. It ends when its leader does, however that ends, and it heeds no signal that is meant
for the worker: whether and when to stop is its leader's to say.
"""

import ctypes
import os
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pipeline.channel import Channel, Message
    from pipeline.engine import Engine

#: A follower that left a job alone waits so long for its leader to leave it, too; then it ends, which frees a
#: leader that waits for it in an exchange.
SETTLE_S = 20.0
_LEADERS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def main(rank: int, descriptor: int) -> NoReturn:
    """Follows until the leader is gone.

    Args:
        rank: Which one this is, from 1.
        descriptor: A connected socket to the leader.
    """
    for each in _LEADERS:
        signal.signal(each, signal.SIG_IGN)
    _die_with_parent()
    from pipeline.channel import Channel  # noqa: PLC0415 - what can be done before a slow import, is

    channel = Channel(socket.socket(fileno=descriptor), on_end=lambda: os._exit(0))
    setup = channel.receive() or {}
    try:
        engine = _prepare(rank, setup, channel)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the leader is to hear of it
        traceback.print_exc()
        channel.send(**_failure(error))
        os._exit(1)
    channel.send(report="ready")
    while True:
        order = channel.receive()
        if order is not None and order.get("order") == "render":
            _follow(engine, order, channel)


def _die_with_parent() -> None:
    """Should the leader die while this process is stuck, the kernel ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prepare(rank: int, setup: "Message", channel: "Channel") -> "Engine":
    from pipeline.importing import import_engine  # noqa: PLC0415
    from policy.model_spec import ModelSpec  # noqa: PLC0415
    from policy.parallel import Degrees  # noqa: PLC0415
    from policy.resolve import Policy  # noqa: PLC0415

    spec, policy = ModelSpec.model_validate(setup["spec"]), Policy.from_json(setup["policy"])
    degrees = Degrees.from_policy(policy)
    engine_kind = import_engine(quantise=policy["quantize"] != "none").Engine
    import torch  # noqa: PLC0415

    from pipeline.parallel import find_store, join  # noqa: PLC0415

    channel.send(report="here")
    ranks = join(find_store(setup["port"], degrees.world), rank, degrees, torch.device(setup["device"]))
    engine: Engine = engine_kind(
        spec,
        policy,
        source=setup["source"],
        device=str(ranks.device),
        backend=setup["backend"],
        ranks=ranks,
    )
    engine.prepare()
    return engine


def _follow(engine: "Engine", order: "Message", channel: "Channel") -> None:
    """Renders what the leader renders, stops where it stops, and waits until it has left the job as well.

    A GPU runs behind its host: what it still waits for would be matched with the next job's first exchange.
    So nothing is reported as left before the device has come to its end.
    """
    from pipeline.channel import read_inputs  # noqa: PLC0415
    from pipeline.errors import Stopped  # noqa: PLC0415
    from pipeline.memory import STEP_S, settles  # noqa: PLC0415
    from policy.plan import RenderPlan  # noqa: PLC0415

    done, total, left = 0, 1, False

    def on_step(step: int, steps: int) -> bool:
        nonlocal done, total, left
        done, total = step, steps
        message = channel.receive() or {}
        left = message.get("order") == "leave"
        return bool(message.get("go"))

    try:
        plan, inputs = RenderPlan.model_validate(order["plan"]), read_inputs(order["inputs"])
        engine.render(plan, on_step, safer=order["safer"], inputs=inputs)
        report: Message = {"report": "done"}
    except Stopped:
        report = {"report": "done"}
    except Exception as error:  # noqa: BLE001 - a job's own fault, most likely the leader's, too
        traceback.print_exc()
        report = _failure(error)
    failed = report["report"] == "failed"
    settled = settles(engine.device, STEP_S if failed or left else None)
    if failed or settled:
        channel.send(**report)
    in_the_middle = failed and done < total
    if not settled or not (left or _left(channel, SETTLE_S if in_the_middle else None)):
        os._exit(1)


def _left(channel: "Channel", timeout_s: float | None) -> bool:
    """Whether the leader has left the job, in this time at most."""
    while (message := channel.receive(timeout_s)) is not None:
        if message.get("order") == "leave":
            return True
    return False


def _failure(error: BaseException) -> "Message":
    code = getattr(error, "code", "internal_error")
    words = " ".join(str(error).split())[:300]
    return {"report": "failed", "code": code, "words": f"{type(error).__name__}: {words}"}


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
