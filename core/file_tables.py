"""The tables of files that callers send: the files, and who needs them still."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, false, text
from sqlalchemy.orm import Mapped, mapped_column

from core.clock import now
from core.orm import ID, Base


class File(Base):
    """A picture that a caller has sent; its bytes are in the artifact store."""

    __tablename__ = "files"

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    caller: Mapped[str] = mapped_column(String(100))
    key: Mapped[str] = mapped_column(String(300), unique=True)
    """Where the artifact store keeps it."""
    media_type: Mapped[str] = mapped_column(String(100))
    width: Mapped[int]
    """Of the picture when it stands upright."""
    height: Mapped[int]
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    stored: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether the artifact store has it; the row comes first, so that no file is ever unknown."""
    gone_at: Mapped[datetime | None]
    """When it was given up: no job may name it any more, and its bytes are about to be deleted."""
    sent_at: Mapped[datetime] = mapped_column(default=now())
    """When it was last sent."""
    created_at: Mapped[datetime] = mapped_column(default=now())

    __table_args__ = (
        Index(
            "uq_files_content",
            *("caller", "sha256"),
            unique=True,
            sqlite_where=text("gone_at IS NULL"),
            postgresql_where=text("gone_at IS NULL"),
        ),
        Index("ix_files_sent_at", "sent_at"),
    )


class JobInput(Base):
    """A file that a job draws from."""

    __tablename__ = "job_inputs"

    job_id: Mapped[str] = mapped_column(ID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    field: Mapped[str] = mapped_column(String(20), primary_key=True)
    """Of the request: image or mask."""
    file_id: Mapped[str] = mapped_column(ID, ForeignKey("files.id", ondelete="CASCADE"))

    __table_args__ = (Index("ix_job_inputs_file_id", "file_id"),)


class ScheduleFile(Base):
    """A file that the rows of a schedule name."""

    __tablename__ = "schedule_files"

    schedule_id: Mapped[str] = mapped_column(
        ID, ForeignKey("schedules.id", ondelete="CASCADE"), primary_key=True
    )
    file_id: Mapped[str] = mapped_column(ID, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True)

    __table_args__ = (Index("ix_schedule_files_file_id", "file_id"),)
