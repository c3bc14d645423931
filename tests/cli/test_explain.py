"""`renderq policy explain` into a pipe and on a terminal of the kernel's."""

import json
import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from cli.table import wrap
from policy.options import OPTIONS
from tests.cli.conftest import Run

SIZES = ",".join(f"{side}x{side}" for side in range(256, 1024 + 1, 32))
COMMAND = (sys.executable, "-P", "-m", "cli.main", "policy", "explain", "flux.1-dev", "--warmup-sizes", SIZES)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**kept, "XDG_DATA_HOME": str(tmp_path)}


def on_terminal(columns: int, environment: dict[str, str]) -> list[str]:
    """What a terminal of this width is sent."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (50, columns))
    process = subprocess.Popen(COMMAND, stdin=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    sent = b""
    try:
        while part := os.read(ours, 65536):
            sent += part
    except OSError:  # the last one to hold the other end has left
        pass
    os.close(ours)
    assert process.wait() == 0
    return sent.decode().splitlines()


@pytest.mark.parametrize("columns", [None, "40"])
def test_a_pipe_gets_each_option_on_one_line_and_whole(
    environment: dict[str, str], columns: str | None
) -> None:
    more = {} if columns is None else {"COLUMNS": columns}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=environment | more, check=True)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["option", *OPTIONS]
    assert max(map(len, lines)) > 200
    assert any(SIZES in line for line in lines)
    assert not [line for line in lines if line != line.rstrip()]


def test_a_terminal_gets_lines_of_its_width_with_every_word(environment: dict[str, str]) -> None:
    piped = subprocess.run(COMMAND, capture_output=True, text=True, env=environment, check=True).stdout
    for columns in (90, 140):
        lines = on_terminal(columns, environment)
        assert 80 < max(map(len, lines)) <= columns
        assert sorted(words(lines)) == sorted(words(piped.splitlines()))
        names = [line.split()[0] for line in lines if not line.startswith(" ")]
        assert names == ["option", *OPTIONS]


def test_cards_that_are_not_here_are_answered_for(renderq: Run) -> None:
    asked = ("policy", "explain", "qwen-image", "--gpu", "48", "--gpus", "2")
    told = renderq(*asked)
    assert told.exit_code == 0, told.output
    first, header, *_ = told.stdout.splitlines()
    assert first.startswith("hardware stated, not seen: 2 x NVIDIA GPU of 48 GB")
    assert header.split() == ["option", "value", "source", "reason"]
    answer = json.loads(renderq(*asked, "--json").stdout)
    assert answer["options"]["fsdp"]["value"] == answer["options"]["cfg_parallel"]["value"] == 2
    assert (answer["hardware"]["stated"], answer["hardware"]["free_memory_gb"]) == (True, 47.5)
    here = renderq("policy", "explain", "qwen-image", "--json")
    assert json.loads(here.stdout)["hardware"]["stated"] is False
    plain = renderq("policy", "explain", "qwen-image")
    assert "stated" not in plain.stdout
    assert plain.stderr == ""


def test_a_refusal_on_cards_that_are_not_here_says_so_beside_the_reason(renderq: Run) -> None:
    refused = renderq("policy", "explain", "flux.1-dev", "--gpu", "24", "--compile")
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith("hardware stated, not seen: ")
    assert "compile needs the weights in place" in refused.stderr
    assert "nearest: 1" in renderq("policy", "explain", "tiny", "--gpu", "24", "--gpus", "0").stderr


def words(lines: list[str]) -> list[str]:
    return " ".join(lines).replace(",", ", ").split()


COLUMNS = ("option", "value", "reason")
ROWS = [
    ("compile", "false", "off by default, also in speed mode; opt in with --compile"),
    ("warmup_sizes", "64x64,32x32,16x16", "given as a list of sizes"),
    ("cache", None, ""),
]


def test_a_long_cell_goes_on_below_itself_between_words_and_values() -> None:
    assert wrap(COLUMNS, ROWS, 51, narrow={"value": 12}) == [
        "option        value         reason",
        "compile       false         off by default, also in",
        "                            speed mode; opt in with",
        "                            --compile",
        "warmup_sizes  64x64,32x32,  given as a list of",
        "              16x16         sizes",
        "cache         -",
    ]


def test_without_a_width_every_row_is_one_line() -> None:
    assert len(wrap(COLUMNS, ROWS, None, narrow={"value": 3})) == 1 + len(ROWS)


def test_names_stay_whole_where_there_is_no_room_for_them() -> None:
    lines = wrap(COLUMNS, ROWS, 10, narrow={"value": 3})
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == {
        "option",
        *(name for name, *_ in ROWS),
    }
