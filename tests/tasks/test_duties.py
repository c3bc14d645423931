"""How upkeep's duties take turns."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.db import Database
from core.settings import Settings
from tasks.upkeep import DUTIES, Duty, Upkeep, look_after, opened, take_turn


@pytest.fixture
def upkeep(tmp_path: Path, redis_url: str) -> Iterator[Upkeep]:
    settings = Settings.for_data_dir(tmp_path, redis_url=redis_url)
    database = Database(settings.database_url)
    database.upgrade()
    database.dispose()
    with opened(settings) as upkeep:
        yield upkeep


def test_every_duty_has_a_name_of_its_own() -> None:
    assert len({duty.name for duty in DUTIES}) == len(DUTIES)
    assert {"tick", "feed", "rescue", "expire", "tidy"} < {duty.name for duty in DUTIES}


def test_a_fault_in_a_duty_ends_nothing_and_counts_as_its_turn(upkeep: Upkeep) -> None:
    def fail(_: Upkeep) -> None:
        raise ZeroDivisionError

    take_turn(upkeep, Duty("expire", fail))
    assert "expire" in upkeep.turned_at
    done: list[str] = []
    take_turn(upkeep, Duty("expire", lambda _: done.append("again")))
    assert done == ["again"]


def test_a_duty_under_way_is_not_begun_a_second_time(upkeep: Upkeep) -> None:
    begun, go_on = threading.Event(), threading.Event()
    first = threading.Thread(target=take_turn, args=(upkeep, Duty("tidy", lambda _: wait(begun, go_on))))
    first.start()
    assert begun.wait(10)
    second: list[str] = []
    take_turn(upkeep, Duty("tidy", lambda _: second.append("begun")))
    go_on.set()
    first.join()
    assert second == []


def wait(begun: threading.Event, go_on: threading.Event) -> None:
    begun.set()
    assert go_on.wait(10)


def test_a_look_leaves_alone_what_had_its_turn_a_moment_ago(upkeep: Upkeep) -> None:
    look_after(upkeep, silent_s=600)
    first = dict(upkeep.turned_at)
    assert set(first) == {duty.name for duty in DUTIES}
    look_after(upkeep, silent_s=600)
    assert upkeep.turned_at == first
    look_after(upkeep)
    assert all(upkeep.turned_at[name] > moment for name, moment in first.items())
