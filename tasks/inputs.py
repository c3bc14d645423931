"""The pictures that a job draws from: read from the artifact store, and proved to be those of its plan."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from core import files
from core.errors import Gone
from core.pictures import BadPicture, read_picture
from pipeline.errors import InputDamaged, InputGone
from tasks.patience import patiently

if TYPE_CHECKING:
    from PIL.Image import Image

    from core.file_tables import File
    from core.tables import Job
    from pipeline.inputs import Inputs
    from policy.pictures import PlannedPicture
    from policy.plan import RenderPlan
    from tasks.child import Child


def load(me: Child, job: Job, plan: RenderPlan) -> Inputs | None:
    """The pictures of the job's plan; None when it draws from none.

    Raises:
        InputGone: One of them is not kept any more.
        InputDamaged: One of them is not what it was when the job was ordered.
    """
    if plan.image is None:
        return None
    from pipeline.inputs import Inputs

    kept = _files(me, job)
    image = _read(me, "image", plan.image, kept)
    mask = None if plan.mask is None else _read(me, "mask", plan.mask, kept)
    return Inputs(image, mask)


@patiently
def _files(me: Child, job: Job) -> dict[str, File]:
    with me.database.reading() as session:
        return files.job_files(session, job.id)


def _read(me: Child, field: str, planned: PlannedPicture, kept: dict[str, File]) -> Image:
    if field not in kept:
        raise InputGone(f"The {field} of the job is not kept any more. Upload it and order anew.")
    try:
        data = patiently(me.artifacts.get)(kept[field].key)
    except Gone:
        raise InputGone(f"The {field} of the job has been deleted. Upload it and order anew.") from None
    if hashlib.sha256(data).hexdigest() != planned.sha256:
        raise InputDamaged(f"The {field} in the artifact store is not what was uploaded. Upload it anew.")
    try:
        return read_picture(data)
    except BadPicture as words:
        raise InputDamaged(f"The {field} of the job {words}.") from None
