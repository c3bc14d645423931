"""A Celery task that does nothing but note when it ran: what the queue is compared with."""

import os
import time
from pathlib import Path

from celery import Celery

QUEUE = "bare"
app = Celery("bare", broker=os.environ["RENDERQ_REDIS_URL"])
app.conf.update(task_ignore_result=True, task_default_queue=QUEUE, worker_hijack_root_logger=False)


@app.task(name="bare.noop")
def noop(number: int, pace_s: float = 0.0) -> None:
    """Add a line with the number and the time to the file of this run, then work for ``pace_s``."""
    with Path(os.environ["BARE_CELERY_FILE"]).open("a", encoding="utf-8") as notes:
        notes.write(f"{number} {time.time()}\n")
    time.sleep(pace_s)
