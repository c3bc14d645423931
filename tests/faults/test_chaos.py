"""A short run of chance on each kind of database; `make chaos` has the long ones."""

from itertools import islice

from tests.faults.orders import draw_orders
from tests.faults.plan import cells, draw_plan
from tests.faults.run import Wish, run_on
from tests.faults.scene import Scene, on
from tests.faults.system import left_behind

JOBS, SECONDS, FAULTS = 40, 5.0, 6


@on("sqlite", "postgresql")
def test_nothing_is_lost_doubled_or_changed_while_processes_are_killed_and_cut_off(
    scene: Scene, database_kind: str
) -> None:
    layout = scene.system.layout
    wish = Wish(layout.folder, JOBS, SECONDS, 7, database_kind, layout.lease_s, most_faults=FAULTS)
    result = run_on(scene.system, wish)
    assert result.findings.all() == []
    assert result.told.accepted == JOBS
    assert result.faults.total() > 0
    meant = scene.system.meant_to_live()
    assert {pid: words for pid, words in left_behind(layout.folder).items() if pid not in meant} == {}


def test_a_seed_gives_one_plan_that_tries_every_cell_before_any_again() -> None:
    for kind in ("sqlite", "postgresql"):
        every = cells(kind)
        plan = list(islice(draw_plan(3, kind), len(every)))
        assert plan == list(islice(draw_plan(3, kind), len(every)))
        assert sorted((fault.component, fault.kind, fault.phase) for fault in plan) == sorted(every)
        assert plan != list(islice(draw_plan(4, kind), len(every)))


def test_three_seeds_in_a_row_aim_at_every_cell_within_the_faults_of_one_run_each() -> None:
    for kind in ("sqlite", "postgresql"):
        every = set(cells(kind))
        most = len(every) // 3 + 1
        aimed = {
            (fault.component, fault.kind, fault.phase)
            for seed in (1, 2, 3)
            for fault in islice(draw_plan(seed, kind), most)
        }
        assert aimed == every


def test_a_seed_gives_the_same_orders_of_as_many_jobs_as_were_asked_for() -> None:
    orders = draw_orders(3, 500)
    assert orders == draw_orders(3, 500)
    assert sum(order.jobs for order in orders) == 500
    assert {order.how for order in orders} == {"once", "repeat", "at once", "other body", "cancel"}
    assert len({order.key for order in orders}) == len(orders)
