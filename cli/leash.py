"""Ends processes whose starter is gone, also after a kill -9 that lets nobody clean up.

The starter keeps the write end of a pipe and gives each child the read end as its standard input. The
kernel closes the write end with the starter, however it dies, and the children read end-of-file. It needs
no polling and no platform-specific call.

A program of ours holds the leash in a thread (`hold_leash`). For a program of others this file is run as a
small parent: ``python -P -m cli.leash COMMAND...``.
"""

import os
import signal
import subprocess
import sys
import threading

GRACE_S = 5.0
"""How long a program of others may take to end by itself."""


def hold_leash(descriptor: int = 0) -> None:
    """Kill this process and its process group as soon as ``descriptor`` reads end-of-file."""
    threading.Thread(target=_kill_at_end, args=(descriptor,), name="leash", daemon=True).start()


def _kill_at_end(descriptor: int) -> None:
    wait_for_end(descriptor)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_end(descriptor: int) -> None:
    """Return when the other end of the pipe is closed."""
    while os.read(descriptor, 1024):
        pass


def run_leashed(command: list[str]) -> int:
    """Run ``command`` until it ends, SIGTERM arrives or standard input closes; return its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, lambda *_: child.terminate())
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_end_at_end, args=(child,), name="leash", daemon=True).start()
    return child.wait()


def run_held(
    command: list[str], stdout: int | None = None, stderr: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """As `subprocess.run`, for a program that has to end when we do, however that is."""
    held, ours = os.pipe()
    leashed = [sys.executable, "-P", "-m", "cli.leash", *command]
    try:
        with subprocess.Popen(leashed, stdin=held, stdout=stdout, stderr=stderr, text=True) as process:
            try:
                out, err = process.communicate()
            finally:
                os.close(ours)  # where we are interrupted, it is told, and Popen waits for its end
            return subprocess.CompletedProcess(command, process.returncode, out, err)
    finally:
        os.close(held)


def end_like(code: int) -> None:
    """End as the child did: by the same signal, so that whoever looks at us learns of it."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _end_at_end(child: subprocess.Popen[bytes]) -> None:
    wait_for_end(0)
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    end_like(run_leashed(sys.argv[1:]))
