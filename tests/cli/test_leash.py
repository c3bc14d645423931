"""Children of a killed starter."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.fixtures.processes import is_gone
from tests.fixtures.waiting import wait_until

STARTER = """
import os, signal, subprocess, sys
leash, end = os.pipe()
print(os.getpid(), flush=True)
subprocess.Popen(sys.argv[1:], stdin=leash, process_group=0)
signal.pause()
"""
SLEEPER = "import os, signal, sys; open(sys.argv[1], 'w').write(f'{os.getpid()}\\n'); signal.pause()"
OURS = """
import os, signal, subprocess, sys
from cli.leash import hold_leash
hold_leash()
subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
signal.pause()
"""


def kill_starter_of(*command: str, pid_file: Path) -> int:
    """Start the command under a starter, kill the starter, return the pid that the command wrote."""
    starter = subprocess.Popen([sys.executable, "-c", STARTER, *command], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), 10, "the command")
    finally:
        starter.kill()
        starter.wait()
    return int(pid_file.read_text())


def test_a_program_of_others_ends_with_its_killed_starter(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = (sys.executable, "-P", "-m", "cli.leash", sys.executable, "-c", SLEEPER, str(pid_file))
    pid = kill_starter_of(*command, pid_file=pid_file)
    wait_until(lambda: is_gone(pid), 10, "the end of the program")


def test_a_measurement_ends_with_the_command_that_began_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    held = "import sys; from cli.leash import run_held; run_held(sys.argv[1:])"
    command = (sys.executable, "-P", "-c", held, sys.executable, "-c", SLEEPER, str(pid_file))
    outer = subprocess.Popen(command)
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), 10, "the command")
    outer.kill()
    outer.wait()
    wait_until(lambda: is_gone(int(pid_file.read_text())), 10, "the end of the program")


def test_a_program_of_ours_ends_with_all_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = (sys.executable, "-P", "-c", OURS, str(pid_file), SLEEPER)
    pid = kill_starter_of(*command, pid_file=pid_file)
    wait_until(lambda: is_gone(pid), 10, "the end of the grandchild")


def test_the_small_parent_passes_sigterm_on_and_reports_the_exit_code(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    leash, end = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.leash", sys.executable, "-c", SLEEPER, str(pid_file)], stdin=leash
    )
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), 10, "the command")
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(10) != 0
    assert is_gone(int(pid_file.read_text()))
    os.close(leash)
    os.close(end)


def test_the_small_parent_ends_by_the_signal_that_ended_the_program() -> None:
    leash, end = os.pipe()
    for number in (signal.SIGKILL, signal.SIGABRT):
        code = f"import os; os.kill(os.getpid(), {int(number)})"
        command = (sys.executable, "-P", "-m", "cli.leash", sys.executable, "-c", code)
        assert subprocess.run(command, stdin=leash, check=False).returncode == -number
    os.close(leash)
    os.close(end)
