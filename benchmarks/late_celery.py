"""A Celery task that takes long and is acknowledged late: what a killed worker's job is compared with.

The process that imports this is told by the environment which server it uses, where the task notes its runs,
and which settings of Celery are tried.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from celery import Celery

QUEUE = "late"
TASK = "late.work"
FOLDER, CONF = "LATE_CELERY_FOLDER", "LATE_CELERY_CONF"
LOOK_S = 0.05


def make_app(url: str, conf: Mapping[str, object]) -> Celery:
    """Celery as its documentation advises for long tasks, with ``conf`` on top."""
    app = Celery("late", broker=url)
    app.conf.update(
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        task_ignore_result=True,
        task_default_queue=QUEUE,
        worker_hijack_root_logger=False,
        **conf,
    )
    return app


def notes_of(folder: Path, number: int) -> Path:
    """The file with a line for each run of a task: process and time."""
    return folder / f"{number}.runs"


def end_of(folder: Path, number: int) -> Path:
    """The file whose being there ends the runs of a task."""
    return folder / f"{number}.end"


def work(number: int, seconds: float) -> None:
    """Note the run, then be busy."""
    folder = Path(os.environ[FOLDER])
    with notes_of(folder, number).open("a", encoding="utf-8") as notes:
        notes.write(f"{os.getpid()} {time.time()}\n")
    until = time.monotonic() + seconds
    while time.monotonic() < until and not end_of(folder, number).exists():
        time.sleep(LOOK_S)


if FOLDER in os.environ:
    app = make_app(os.environ["RENDERQ_REDIS_URL"], json.loads(os.environ[CONF]))
    app.task(name=TASK)(work)
