"""Calls in new processes, with a limit on their time; the next process imports while the last one works.

None is forked from one that may have touched a GPU.
"""

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

_LIBRARIES = ("cache_dit", "pipeline.engine", "pipeline.leader", "pipeline.miniature")


class CallFailed(Exception):
    """The call raised, or its process ended or had to be ended; in words."""


class SpareProcess:
    """Runs one call at a time, each in a process of its own."""

    def __init__(self, libraries: Sequence[str] = _LIBRARIES) -> None:
        """Starts the first process.

        Args:
            libraries: Modules that each process imports before it takes a call.
        """
        self._libraries = libraries
        self._context = multiprocessing.get_context("spawn")
        self._process, self._pipe = self._start()

    def run(self, call: Callable[[], Any], seconds: float) -> Any:  # noqa: ANN401 - the call's answer
        """Runs the call, which has to be one that pickle knows by name.

        Raises:
            CallFailed: It failed, or took longer than ``seconds``.
        """
        process, pipe = self._process, self._pipe
        self._process, self._pipe = self._start()
        pipe.send(call)
        try:
            if not pipe.poll(seconds):
                raise CallFailed(f"stopped after {seconds:.0f} s")
            failed, answer = pipe.recv()
        except EOFError as error:
            raise CallFailed("its process ended in the middle of it") from error
        finally:
            _end(process, pipe)
        if failed:
            raise CallFailed(answer)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._process, self._pipe)

    def _start(self) -> tuple[Any, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._libraries))
        process.start()
        theirs.close()
        return process, ours


def _end(process: Any, pipe: Connection) -> None:  # noqa: ANN401 - a process of the context's own kind
    pipe.close()
    process.kill()
    process.join()


def _serve(pipe: Connection, libraries: Sequence[str]) -> None:
    for name in libraries:
        import_module(name)
    call = pipe.recv()
    try:
        pipe.send((False, call()))
    except Exception as error:  # noqa: BLE001 - told in the row, so that the others still run
        traceback.print_exc()
        pipe.send((True, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
