"""The command line that benchmarks of models share: which ones, one JSON document or a table, exit status."""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

from policy.catalogue import Catalogue

#: A dataclass with `is_right`: whether what was measured is what is promised.
Row = TypeVar("Row", bound=Any)


def read_arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with what all take: `--json` and `--model`, which may be given several times."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--model", action="append", choices=tuple(Catalogue.load()), help="only this one")
    return parser


def report(rows: Iterable[Row], table: Callable[[Iterable[Row]], Iterator[str]], *, as_json: bool) -> int:
    """Prints the rows, a table's lines as they come; the exit status is 1 where one is not right."""
    seen: list[Row] = []
    if as_json:
        seen.extend(rows)
        print(json.dumps([{**asdict(row), "right": row.is_right} for row in seen], indent=2))
    else:
        for line in table(_kept(rows, seen)):
            print(line, flush=True)
    return 0 if all(row.is_right for row in seen) else 1


def _kept(rows: Iterable[Row], seen: list[Row]) -> Iterator[Row]:
    for row in rows:
        seen.append(row)
        yield row
