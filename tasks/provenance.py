"""What a file says about its own making: enough to make it again, and nothing about who ordered it.

The same request on the same kind of worker gives the same bytes. So no job id, no time, no worker, no attempt
is written, and nothing of the request that leaves the pixels alone (priority, deadlines). The caller's
metadata stays out too: a picture is handed on, its order is private.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from policy.microbatch import Likeness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.rendering import Picture
    from policy.model_spec import ModelSpec
    from policy.plan import RenderPlan
    from policy.resolve import Policy

#: Fields of a request that change when or whether a picture is made, and never the picture.
NOT_ABOUT_PIXELS = frozenset({"metadata", "priority", "queue_timeout_s", "run_timeout_s"})
#: Of the record of what ran: what depends on what the worker did before, or beside.
NOT_REPEATABLE = frozenset({"compiles", "warm_shape", "pass_of"})
#: The same of what does not show in the picture unless its pass was less than exact.
OF_ITS_PASS = frozenset({"microbatch", "likeness"})


def describe(
    *,
    spec: ModelSpec,
    policy: Policy,
    plan: RenderPlan,
    request: Mapping[str, Any],
    picture: Picture,
    ran: Mapping[str, Any],
    from_folder: bool = False,
) -> dict[str, object]:
    """The provenance of one picture, plain JSON.

    Args:
        spec: The model.
        policy: The worker's resolved options.
        plan: What was rendered.
        request: What the caller asked for.
        picture: Gives the index and the seed; asking for that seed alone repeats this picture.
        ran: The engine's record of the acceleration that really ran.
        from_folder: The weights came from the operator's own folder, whose revision nobody knows.
    """
    return {
        "request": _request(request, plan),
        "plan": plan.model_dump(mode="json"),
        "index": picture.index,
        "seed": picture.seed,
        "model": _model(spec, from_folder=from_folder),
        "policy": _options(policy),
        "acceleration": _acceleration(ran),
        "versions": _versions(),
    }


def _acceleration(ran: Mapping[str, Any]) -> dict[str, object]:
    left_out = NOT_REPEATABLE if ran.get("likeness") == Likeness.CLOSE else NOT_REPEATABLE | OF_ITS_PASS
    return {name: value for name, value in ran.items() if name not in left_out}


def _model(spec: ModelSpec, *, from_folder: bool) -> dict[str, str | None]:
    if from_folder:
        return {"id": spec.id, "source": "local folder", "revision": None}
    return {"id": spec.id, "source": spec.source, "revision": spec.revision}


@cache
def _versions() -> dict[str, str]:
    """What is installed, looked up once per process: it takes longer than to store a small picture."""
    from pipeline import versions

    return versions.collect()


def _request(request: Mapping[str, Any], plan: RenderPlan) -> dict[str, object]:
    """The request without gaps that would be filled at random: sending it again gives the same picture.

    Pictures that it draws from are named by their content, however the caller named them.
    """
    kept = {
        name: value for name, value in request.items() if name not in NOT_ABOUT_PIXELS and value is not None
    }
    drawn_from = {"image": plan.image, "mask": plan.mask}
    by_content = {name: f"sha256:{file.sha256}" for name, file in drawn_from.items() if file is not None}
    return kept | by_content | {"seed": plan.seed}


def _options(policy: Policy) -> dict[str, object]:
    """Each option in effect with its source; reasons tell of the machine's memory and would differ."""
    return {
        name: {"value": option.value, "source": option.source}
        for name, option in policy.options.items()
        if option.value is not None
    }
