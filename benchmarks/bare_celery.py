"""A Celery task that does nothing but note when it ran: what `benchmarks.queue_overhead` compares with."""

import os
import time
from pathlib import Path

from celery import Celery

QUEUE = "bare"
app = Celery("bare", broker=os.environ["RENDERQ_REDIS_URL"])
app.conf.update(task_ignore_result=True, task_default_queue=QUEUE, worker_hijack_root_logger=False)


@app.task(name="bare.noop")
def noop(number: int) -> None:
    """Add a line with the number and the time to the file of this run."""
    with Path(os.environ["BARE_CELERY_FILE"]).open("a", encoding="utf-8") as notes:
        notes.write(f"{number} {time.time()}\n")
