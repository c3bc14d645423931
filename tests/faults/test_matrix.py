"""The matrix in `docs/promises.md` is that of the harness, and every test it names is there."""

import re
from pathlib import Path

from tests.faults.phases import PHASES
from tests.faults.plan import ALONE, KINDS, ON_DATABASE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "promises.md").read_text()
NAMED = re.compile(r"^(\d+)\. `(tests/[\w/]+\.py)`: `(\w+)`$", re.MULTILINE)


def rows() -> dict[tuple[str, str], list[str]]:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT.splitlines()
        if line.startswith("|")
    ]
    every = [row for row in cells if len(row) == 2 + len(PHASES)]
    return {(row[0], row[1]): row[2:] for row in every[2:]}


def numbers(cell: str) -> list[str]:
    return [part for part in cell.split(", ") if part.isdecimal()]


def test_every_component_and_fault_of_the_plan_has_its_row() -> None:
    parts = [*KINDS.items(), *(part for kind in ON_DATABASE.values() for part in kind.items())]
    planned = {(name, kind) for name, kinds in parts for kind in kinds}
    alone = {(name, kind) for name, kinds in ALONE.items() for kind in kinds}
    assert set(rows()) == planned | alone
    for part, row in rows().items():
        assert all(cell.startswith("chaos") == (part in planned) for cell in row)
        assert part in planned or any(map(numbers, row))


def test_every_test_that_the_matrix_names_is_there_and_used() -> None:
    named = {number: (file, name) for number, file, name in NAMED.findall(TEXT)}
    used = {number for row in rows().values() for cell in row for number in numbers(cell)}
    assert used == named.keys()
    for file, name in named.values():
        assert f"def {name}(" in (ROOT / file).read_text(), name
