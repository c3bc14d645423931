"""Stores the files of an attempt, under its own key: nobody sees them before the attempt completes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from core.artifacts import NewArtifact, artifact_key
from tasks import provenance
from tasks.child import local_source
from tasks.patience import patiently

if TYPE_CHECKING:
    from core.tables import Job
    from pipeline.rendering import Picture, Rendering
    from policy.plan import RenderPlan
    from tasks.child import Child


def keep(me: Child, job: Job, plan: RenderPlan, rendering: Rendering, picture: Picture) -> NewArtifact:
    """Store one picture's file."""
    from pipeline import encode

    told = provenance.describe(
        spec=me.setup.spec,
        policy=me.setup.policy,
        plan=plan,
        request=job.request,
        picture=picture,
        ran=rendering.acceleration,
        from_folder=local_source(me.setup) is not None,
    )
    content = encode.encode(picture, plan.output_format, told, plan.fps)
    extension = encode.extension(plan.output_format).removeprefix(".")
    key = artifact_key(job.id, job.attempt, picture.index, extension)
    patiently(me.artifacts.put)(key, content)
    frames = None if picture.frames is None else len(picture.frames)
    small = {} if frames is None else _keep_thumbnail(me, job, picture, told)
    return NewArtifact(
        index=picture.index,
        key=key,
        media_type=encode.media_type(plan.output_format),
        width=plan.width,
        height=plan.height,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        seed=picture.seed,
        frames=frames,
        fps=plan.fps if frames else None,
        duration_s=frames / plan.fps if frames and plan.fps else None,
        **small,
    )


def _keep_thumbnail(me: Child, job: Job, video: Picture, told: dict[str, object]) -> dict[str, Any]:
    from pipeline import encode, thumbnail

    content = encode.encode(thumbnail.thumbnail(video), thumbnail.FORMAT, told)
    key = artifact_key(job.id, job.attempt, f"{video.index}-thumbnail", thumbnail.FORMAT)
    patiently(me.artifacts.put)(key, content)
    return {
        "thumbnail_key": key,
        "thumbnail_bytes": len(content),
        "thumbnail_sha256": hashlib.sha256(content).hexdigest(),
    }
