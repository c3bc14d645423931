"""What all tables share: names of constraints, how words and times are kept."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import JSON, Enum, MetaData, String
from sqlalchemy.orm import DeclarativeBase

from core.clock import Timestamp
from core.lifecycle import BatchState, FiringKind, FiringOutcome, JobState, Misfire, Outcome, WorkerState

Json = dict[str, Any]

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def words(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in sorted(words))


def _spelled(kind: type[StrEnum]) -> Enum:
    """Keep the word, not a type of the database that every new word would have to alter."""
    return Enum(kind, native_enum=False, create_constraint=False, length=20, values_callable=list)


ID = String(36)


class Base(DeclarativeBase):
    """What all tables share."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: Timestamp(),
        Json: JSON(none_as_null=True),
        list[Json]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
        dict[str, int]: JSON(none_as_null=True),
        dict[str, float]: JSON(none_as_null=True),
        dict[str, str]: JSON(none_as_null=True),
        JobState: _spelled(JobState),
        Outcome: _spelled(Outcome),
        WorkerState: _spelled(WorkerState),
        BatchState: _spelled(BatchState),
        Misfire: _spelled(Misfire),
        FiringKind: _spelled(FiringKind),
        FiringOutcome: _spelled(FiringOutcome),
    }
