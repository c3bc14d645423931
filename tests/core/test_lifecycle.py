"""Picture, table of the document, enum and moves say the same."""

import re
from pathlib import Path

import pytest

from core import lifecycle
from core.lifecycle import CANCEL_REQUESTED, MOVES, TERMINAL, JobState, Outcome

DOCUMENT = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
PICTURE = DOCUMENT.split("```mermaid")[1].split("```")[0]
ARROWS = re.findall(r"^ +(\S+) --> (\S+?)(?:: (\S+))?$", PICTURE, re.MULTILINE)


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its two head lines."""
    table = DOCUMENT.split(title, 1)[1].split("\n\n")
    lines = next(part for part in table if part.lstrip().startswith("|")).strip().splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_picture_has_an_arrow_for_each_move_and_no_other() -> None:
    drawn = {(move, source, target) for source, target, move in ARROWS if target != "[*]"}
    assert drawn == {(move.name, move.source or "[*]", move.target) for move in MOVES.values()}


def test_the_picture_ends_in_the_terminal_states() -> None:
    assert {source for source, target, _ in ARROWS if target == "[*]"} == TERMINAL


def test_the_document_lists_the_states() -> None:
    listed = {row[0]: row[2] for row in rows("# The life of a job")}
    assert listed == {state: "yes" if state.is_terminal else "no" for state in JobState}


def test_the_document_lists_the_moves() -> None:
    listed = [tuple(row[:4]) for row in rows("## The moves")]
    assert listed == [(move.name, move.source or "–", move.target, move.event) for move in MOVES.values()]


def test_the_document_names_every_outcome_and_the_wish() -> None:
    assert all(f"`{outcome}`" in DOCUMENT for outcome in Outcome)
    assert f"`{CANCEL_REQUESTED}`" in DOCUMENT


def test_no_arrow_leaves_a_terminal_state() -> None:
    assert not [move for move in MOVES.values() if move.source in TERMINAL]


def test_every_state_can_be_reached_and_left_unless_terminal() -> None:
    assert {move.target for move in MOVES.values()} == set(JobState)
    assert {move.source for move in MOVES.values()} - {None} == set(JobState) - TERMINAL


def test_the_table_of_moves_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        MOVES["undo"] = MOVES["claim"]  # type: ignore[index]


def test_the_words_are_those_of_the_interface() -> None:
    assert [str(state) for state in JobState] == [
        "queued",
        "in_progress",
        "completed",
        "failed",
        "canceled",
        "expired",
    ]
    assert lifecycle.JobState("queued") is JobState.QUEUED
