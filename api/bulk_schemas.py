"""The bodies of batches, schedules and firings as this API answers them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

BatchStatus = Literal["running", "paused", "completed", "failed", "canceled"]
MisfireWord = Literal["skip", "once"]


class WindowView(BaseModel):
    """Daily local times between which jobs may start."""

    start: str = Field(examples=["22:00"])
    end: str = Field(examples=["06:00"], description="Earlier than start: over midnight.")
    timezone: str = Field(examples=["Europe/Berlin"])


class BatchUrls(BaseModel):
    """Where to go from a batch."""

    self: str
    jobs: str
    content: str = Field(description="The files as a ZIP.")
    results: str = Field(description="All rows as a CSV table.")
    sheet: str = Field(description="All pictures as one PNG.")
    pause: str
    resume: str
    cancel: str
    retry: str


class BatchView(BaseModel):
    """A batch: many jobs sent in one call, how far they are, and where their files are."""

    id: str
    object: Literal["batch"] = "batch"
    name: str
    status: BatchStatus = Field(
        description="failed: every job has ended, some failed or expired. Ended batches run again by retry."
    )
    total: int = Field(description="Number of rows.")
    counts: dict[str, int] = Field(description="How many rows are in each state of a job.")
    window: WindowView | None
    schedule_id: str | None
    due_at: datetime | None = Field(description="The time of the schedule for which it was made.")
    created_at: datetime
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    retries: int = Field(description="How often its failed rows were ordered again.")
    eta: datetime | None = Field(
        description="When it will end, from measured seconds. Null in lists and when it cannot be told."
    )
    template: dict[str, Any] = Field(description="What its rows have in common, as it was sent.")
    warnings: list[str] = Field(description="What may keep the batch from ending soon, in words.")
    urls: BatchUrls


class FiringView(BaseModel):
    """One time that a schedule came due or was fired by hand, and what came of it."""

    id: str
    object: Literal["firing"] = "firing"
    schedule_id: str
    kind: Literal["due", "manual"]
    outcome: Literal["fired", "skipped", "failed"]
    due_at: datetime
    fired_at: datetime
    missed: int = Field(description="Slots that were missed before this one and are told with it.")
    batch_id: str | None
    error: str | None = Field(description="Why the order could not be made.")


class FiredView(FiringView):
    """A firing by hand with the batch that it made."""

    batch: BatchView | None


class ScheduleUrls(BaseModel):
    """Where to go from a schedule."""

    self: str
    enable: str
    disable: str
    fire: str
    next: str
    firings: str
    batches: str


class ScheduleView(BaseModel):
    """A rule that creates a batch at given times."""

    id: str
    object: Literal["schedule"] = "schedule"
    name: str
    cron: str | None
    at: datetime | None
    every_s: int | None
    timezone: str | None
    window: WindowView | None
    misfire: MisfireWord
    misfire_grace_s: int = Field(description="A slot found later than this is missed.")
    enabled: bool
    template: dict[str, Any] | None = Field(description="As it was sent; null in lists, as grid.")
    grid: dict[str, Any] | None
    total: int = Field(description="Rows of each batch.")
    next_at: datetime | None = Field(description="Null when there is none any more, or it is not enabled.")
    created_at: datetime
    updated_at: datetime
    last_firing: FiringView | None
    warnings: list[str] = Field(
        default=[], description="What its rows leave open, such as empty cells; when it is made or changed."
    )
    urls: ScheduleUrls


class Slots(BaseModel):
    """The next times of a schedule."""

    object: Literal["slots"] = "slots"
    data: list[datetime]
    timezone: str | None = Field(description="Zone of the rule; the times here are UTC.")
    enabled: bool = Field(description="While false, none of them fires.")
