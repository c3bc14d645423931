"""What the callers of a fault run notice by themselves."""

from tests.faults.callers import Told


def test_a_caller_who_is_shown_another_end_than_before_notes_it() -> None:
    told = Told()
    end = {"id": "a", "status": "completed", "artifacts": [{"sha256": "1"}]}
    for job in (end | {"status": "in_progress"}, end, end):
        told.note_end(job)
    assert told.changed == []
    for job in (
        end | {"artifacts": [{"sha256": "2"}]},
        end | {"status": "failed"},
        end | {"status": "queued"},
    ):
        told.note_end(job)
    assert len(told.changed) == 3
