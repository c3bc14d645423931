"""Specs, devices and short ways to resolve, for the tests of the policy layer."""

from collections.abc import Collection, Mapping
from typing import Any

from policy.catalogue import Catalogue
from policy.errors import FieldError, InvalidOptions, InvalidRequest
from policy.model_spec import ModelSpec
from policy.modes import Hardware
from policy.packages import OPTIONAL
from policy.plan import RenderPlan, make_plan
from policy.request import RenderRequest, parse_request
from policy.resolve import Policy, resolve

CATALOGUE = Catalogue.load()
TINY = CATALOGUE["tiny"]
UNFITTED = TINY.model_copy(update={"curve": None})  # whose presets are the rules of any checkpoint
FLUX = CATALOGUE["flux.1-dev"]
SCHNELL = CATALOGUE["flux.1-schnell"]
QWEN = CATALOGUE["qwen-image"]
WAN2 = CATALOGUE["wan2.2-t2v-a14b"]
CPU = Hardware("cpu", None, 1, 16.0, 10.0, supports_bf16=True)


def gpu(
    free_gb: float = 139.0,
    *,
    count: int = 1,
    total_gb: float | None = None,
    bf16: bool = True,
    capability: tuple[int, int] = (9, 0),
    packages: Collection[str] = OPTIONAL,
    least_gb: float | None = None,
) -> Hardware:
    """A GPU on a machine that has every optional package."""
    return Hardware(
        "cuda",
        "Test GPU",
        count,
        total_gb or free_gb + 1,
        free_gb,
        supports_bf16=bf16,
        capability=capability,
        packages=tuple(packages),
        least_free_memory_gb=least_gb,
    )


def with_policy(spec: ModelSpec, **policy: object) -> ModelSpec:
    return spec.model_copy(update={"policy": policy})


def resolved(
    spec: ModelSpec = FLUX,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    hardware: Hardware | None = None,
) -> Policy:
    return resolve(spec, flags=flags or {}, env=env or {}, hardware=hardware or gpu())


def problems(
    spec: ModelSpec = FLUX,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    hardware: Hardware | None = None,
) -> dict[str, FieldError]:
    """The errors of a resolve that is refused, by field."""
    try:
        resolved(spec, flags, env, hardware)
    except InvalidOptions as refusal:
        return {error.field: error for error in refusal.errors}
    return {}


def parsed(**body: object) -> RenderRequest:
    return parse_request({"model": "tiny", "prompt": "a house", **body}, CATALOGUE)


def refused(body: object = None, **fields: object) -> dict[str, FieldError]:
    """The errors of a request that is refused, by field."""
    asked = {"model": "tiny", "prompt": "a house", **fields} if body is None else body
    try:
        parse_request(asked, CATALOGUE)
    except InvalidRequest as refusal:
        return {error.field: error for error in refusal.errors}
    return {}


def planned(spec: ModelSpec = TINY, **fields: Any) -> RenderPlan:
    request = parse_request({"model": spec.id, "prompt": "a house", **fields}, CATALOGUE)
    return make_plan(request, spec, lambda: 7)
