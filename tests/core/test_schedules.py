"""Schedules: each slot fires once whoever looks, missed slots follow their rule, changes are kept."""

import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core import batches, schedules
from core.clock import now
from core.db import Database
from core.errors import Conflict, NotFound
from core.firing import find_slot, fire_due, fire_now
from core.lifecycle import FiringKind, FiringOutcome, JobState, Misfire
from core.tables import Batch, Firing, Job, Schedule
from policy.catalogue import Catalogue
from tasks.schedules import fire_all

CATALOGUE = Catalogue.load()
ORDER = {
    "template": {"model": "tiny", "prompt": "a {colour} house"},
    "rows": [{"colour": "white"}, {"colour": "red"}],
}
ONE = {**ORDER, "rows": [{"colour": "white"}]}
SLOTS = 10
HOURLY = {"cron": "0 * * * *", "timezone": "Europe/Berlin"}


def make(session: Session, **given: object) -> Schedule:
    values: dict = {"caller": "local", "name": "nightly", "rule": HOURLY, "order": ORDER, "total": 2, **given}
    return schedules.create_schedule(session, **values)


def fire(database: Database, schedule: Schedule, at: datetime) -> Firing | None:
    return fire_due(database, CATALOGUE, schedule.id, 3, at)


def slot_of(schedule: Schedule) -> datetime:
    assert schedule.next_at is not None
    return schedule.next_at


def all_of(session: Session, kind: type) -> list:
    return list(session.scalars(select(kind)).all())


def test_a_new_schedule_knows_its_next_slot(session: Session) -> None:
    at = session.scalars(select(now())).one()
    slot = slot_of(make(session))
    assert (slot.minute, slot.second) == (0, 0)
    assert timedelta() < slot - at <= timedelta(hours=1)
    assert make(session, enabled=False).next_at is None


def test_a_slot_creates_its_batch_once_and_moves_on(database: Database) -> None:
    with database.transaction() as session:
        schedule = make(session, window={"start": "22:00", "end": "06:00"})
    slot = slot_of(schedule)
    assert fire(database, schedule, slot - timedelta(seconds=1)) is None
    firing = fire(database, schedule, slot)
    assert firing is not None
    assert (firing.kind, firing.outcome, firing.missed) == (FiringKind.DUE, FiringOutcome.FIRED, 0)
    assert fire(database, schedule, slot) is None
    with database.reading() as session:
        (batch,) = all_of(session, Batch)
        assert (batch.id, batch.schedule_id, batch.due_at) == (firing.batch_id, schedule.id, slot)
        assert batch.window == {"start": "22:00", "end": "06:00", "timezone": "Europe/Berlin"}
        prompts = [job.request["prompt"] for job in batches.batch_jobs(session, batch.id)]
        assert prompts == ["a white house", "a red house"]
        assert schedules.get_schedule(session, schedule.id).next_at == slot + timedelta(hours=1)


def test_each_firing_draws_its_own_seeds(database: Database) -> None:
    with database.transaction() as session:
        schedule = make(session)
    for hours in (0, 1):
        assert fire(database, schedule, slot_of(schedule) + timedelta(hours=hours)) is not None
    with database.reading() as session:
        assert len({job.plan["seed"] for job in all_of(session, Job)}) == 4


@pytest.mark.parametrize(
    ("misfire", "late_s", "outcome", "missed"),
    [
        (Misfire.SKIP, 30, FiringOutcome.FIRED, 0),
        (Misfire.SKIP, 61, FiringOutcome.SKIPPED, 0),
        (Misfire.SKIP, 3 * 3600 + 5, FiringOutcome.FIRED, 3),
        (Misfire.SKIP, 3 * 3600 + 600, FiringOutcome.SKIPPED, 3),
        (Misfire.ONCE, 61, FiringOutcome.FIRED, 0),
        (Misfire.ONCE, 5 * 3600 + 600, FiringOutcome.FIRED, 5),
    ],
)
def test_missed_slots_follow_the_rule(
    database: Database, misfire: Misfire, late_s: int, outcome: FiringOutcome, missed: int
) -> None:
    with database.transaction() as session:
        schedule = make(session, misfire=misfire)
    slot, late = slot_of(schedule), timedelta(seconds=late_s)
    firing = fire(database, schedule, slot + late)
    assert firing is not None
    assert (firing.outcome, firing.missed) == (outcome, missed)
    assert firing.due_at == slot + timedelta(hours=missed)
    with database.reading() as session:
        assert len(all_of(session, Batch)) == (outcome == FiringOutcome.FIRED)
        assert schedules.get_schedule(session, schedule.id).next_at == slot + timedelta(hours=missed + 1)


def test_a_year_of_missed_minutes_is_one_firing(session: Session) -> None:
    schedule = make(session, rule={"cron": "* * * * *", "timezone": "UTC"})
    at = slot_of(schedule) + timedelta(days=365, seconds=10)
    slot = find_slot(schedule, at)
    assert slot is not None
    assert (slot.due_at, slot.next_at) == (at - timedelta(seconds=10), at + timedelta(seconds=50))


def test_one_date_fires_once_and_is_over(database: Database) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    with database.transaction() as session:
        schedule = make(session, rule={"at": at})
    assert fire(database, schedule, at) is not None
    with database.transaction() as session:
        assert schedules.get_schedule(session, schedule.id).next_at is None
        schedules.set_enabled(session, schedule.id, enabled=False)
        session.execute(Schedule.__table__.update().values(at=at - timedelta(days=1)))
        with pytest.raises(Conflict, match="time has passed"):
            schedules.set_enabled(session, schedule.id, enabled=True)


def test_fired_by_hand_it_keeps_its_slots(database: Database) -> None:
    with database.transaction() as session:
        schedule = make(session, enabled=False)
    firing = fire_now(database, CATALOGUE, schedule.id, "local", 3)
    assert (firing.kind, firing.outcome) == (FiringKind.MANUAL, FiringOutcome.FIRED)
    with database.reading() as session:
        assert schedules.get_schedule(session, schedule.id).next_at is None
        page = schedules.list_firings(session, schedule.id)
        assert [found.id for found in page.rows] == [firing.id]
        assert schedules.last_firings(session, [schedule.id])[schedule.id].id == firing.id
    with pytest.raises(NotFound):
        fire_now(database, CATALOGUE, schedule.id, "other", 3)


def test_an_order_that_is_not_valid_any_more_is_told_and_the_slots_go_on(database: Database) -> None:
    with database.transaction() as session:
        schedule = make(session, order={**ORDER, "template": {"model": "gone", "prompt": "x"}})
    slot = slot_of(schedule)
    firing = fire(database, schedule, slot)
    assert firing is not None
    assert firing.outcome == FiringOutcome.FAILED
    assert firing.error is not None
    assert "gone" in firing.error
    with database.reading() as session:
        assert all_of(session, Batch) == []
        assert schedules.get_schedule(session, schedule.id).next_at == slot + timedelta(hours=1)


def test_a_change_of_the_rule_starts_anew_and_a_change_of_the_name_does_not(session: Session) -> None:
    schedule = make(session)
    slot = slot_of(schedule)
    assert schedules.update_schedule(session, schedule.id, name="other").next_at == slot
    changed = schedules.update_schedule(session, schedule.id, cron="30 5 * * *", timezone="America/New_York")
    assert slot_of(changed).minute == 30
    assert changed.version == 3
    assert schedules.set_enabled(session, schedule.id, enabled=False).next_at is None
    assert schedules.set_enabled(session, schedule.id, enabled=True).next_at == changed.next_at
    schedules.delete_schedule(session, schedule.id)
    with pytest.raises(NotFound):
        schedules.get_schedule(session, schedule.id)


def test_the_same_rule_again_drops_no_slot_that_has_come_due(session: Session) -> None:
    schedule = make(session)
    session.execute(update(Schedule).values(next_at=now(-5)))
    due = schedules.get_schedule(session, schedule.id).next_at
    assert schedules.update_schedule(session, schedule.id, enabled=True, **HOURLY, name="x").next_at == due


def test_a_clock_that_was_set_back_fires_no_slot_again(database: Database) -> None:
    with database.transaction() as session:
        schedule = make(session)
    slot = slot_of(schedule)
    assert fire(database, schedule, slot) is not None  # the clock of the test is ahead of the database's
    with database.transaction() as session:
        schedules.set_enabled(session, schedule.id, enabled=False)
        assert schedules.set_enabled(session, schedule.id, enabled=True).next_at == slot + timedelta(hours=1)


def test_a_removed_schedule_leaves_its_batches(database: Database) -> None:
    with database.transaction() as session:
        schedule = make(session)
    firing = fire_now(database, CATALOGUE, schedule.id, None, 3)
    with database.transaction() as session:
        schedules.delete_schedule(session, schedule.id)
    with database.reading() as session:
        assert firing.batch_id is not None
        assert batches.get_batch(session, firing.batch_id).schedule_id is None
        assert all_of(session, Firing) == []


def test_four_tickers_fire_every_slot_of_twenty_schedules_exactly_once(committed_database: Database) -> None:
    """Ten slots in time lapse: all tickers look at each, at once. ``benchmarks.ticks`` does it at length."""
    with committed_database.transaction() as session:
        rule = {"every_s": 60}
        made = [make(session, rule=rule, order=ONE, total=1, misfire=Misfire.SKIP) for _ in range(20)]
    first, last = min(map(slot_of, made)), max(map(slot_of, made))
    slots = [last + timedelta(seconds=60 * number) for number in range(SLOTS)]
    assert last - first < timedelta(seconds=30)
    together = threading.Barrier(4)
    failures: list[BaseException] = []

    def look(times: Iterable[datetime]) -> None:
        try:
            for at in times:
                together.wait(60)
                fire_all(committed_database, CATALOGUE, 3, at)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)
            together.abort()

    tickers = [threading.Thread(target=look, args=(slots,)) for _ in range(4)]
    for ticker in tickers:
        ticker.start()
    for ticker in tickers:
        ticker.join()
    assert failures == []
    with committed_database.reading() as session:
        fired = session.execute(
            select(Firing.schedule_id, Firing.due_at, Firing.outcome, Firing.missed)
        ).all()
        jobs = session.execute(select(Job.batch_id).where(Job.state == JobState.QUEUED)).all()
    assert len(fired) == 20 * SLOTS
    expected = {(one.id, slot_of(one) + timedelta(seconds=60 * n)) for one in made for n in range(SLOTS)}
    assert {(row.schedule_id, row.due_at) for row in fired} == expected
    assert {(row.outcome, row.missed) for row in fired} == {(FiringOutcome.FIRED, 0)}
    assert len({row.batch_id for row in jobs}) == len(jobs) == 20 * SLOTS


def test_a_schedule_that_cannot_be_read_does_not_keep_the_others_from_their_turn(database: Database) -> None:
    with database.transaction() as session:
        broken, sound = make(session), make(session)
        session.execute(
            update(Schedule).where(Schedule.id == broken.id).values(timezone="Mars/Olympus", next_at=now(-60))
        )
        session.execute(update(Schedule).where(Schedule.id == sound.id).values(next_at=now()))
    (firing,) = fire_all(database, CATALOGUE, 3)
    assert firing.schedule_id == sound.id


def test_missed_slots_of_a_long_outage_are_counted(session: Session) -> None:
    schedule = make(session, rule={"every_s": 60})
    slot = find_slot(schedule, slot_of(schedule) + timedelta(days=300, seconds=30))
    assert slot is not None
    assert (slot.missed, slot.due_at) == (300 * 1440, slot_of(schedule) + timedelta(days=300))
