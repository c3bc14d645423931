"""Alive: the process answers. Ready: an accepted job could be rendered now."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy.exc import SQLAlchemyError

from api.deps import Services, ServicesDep
from api.openapi_parts import problems
from api.schemas import Alive, Check, Readiness
from core.errors import AppError
from core.room import refuses_writes
from core.workers import count_ready
from tasks.app import EVICTS, eviction_policy
from tasks.probe import try_write

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Is the process alive", responses=problems(422))
async def healthz() -> Alive:
    """Answer without asking anybody else."""
    return Alive(version=version("renderq"))


@router.get(
    "/readyz",
    summary="Could a job be rendered now",
    responses={503: {"model": Readiness, "description": "Not now; each check says why."}, **problems(422)},
)
def readyz(response: Response, services: ServicesDep) -> Readiness:
    """Look whether database, Redis and the disk of the files take writes, and for a ready worker."""
    database, models = _check_database(services)
    checks = [database, _check_redis(services), _check_artifacts(services), _check_workers(models)]
    ready = all(check.ok for check in checks)
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return Readiness(ready=ready, checks=checks, models=(models or []) if ready else [])


def _check_database(services: Services) -> tuple[Check, list[str] | None]:
    try:
        with services.database.reading() as session:
            refusal = refuses_writes(session)
            within_s = services.heard_within_s
            models = [id_ for id_ in services.catalogue if count_ready(session, id_, within_s=within_s)]
    except (AppError, SQLAlchemyError) as error:
        return Check(name="database", ok=False, reason=_first_line(error)), None
    return Check(name="database", ok=refusal is None, reason=refusal or "it answers"), models


def _check_redis(services: Services) -> Check:
    try:
        with services.broker.connection_for_write() as connection:
            channel: Any = connection.default_channel
            try_write(channel.client)
            policy = eviction_policy(channel.client)
    except Exception as error:  # noqa: BLE001 - kombu lets every kind of error out
        return Check(name="redis", ok=False, reason=_first_line(error))
    reason = f"it answers, but under {policy} {EVICTS}" if policy else "it answers"
    return Check(name="redis", ok=True, reason=reason)


def _check_artifacts(services: Services) -> Check:
    """Only a disk can be asked how much room it has; anything else is known when a file is kept."""
    full = services.artifacts.lacks_room()
    return Check(name="artifacts", ok=full is None, reason=full or "there is room for files")


def _check_workers(models: list[str] | None) -> Check:
    if models is None:
        return Check(name="workers", ok=False, reason="cannot be known without the database")
    if not models:
        return Check(name="workers", ok=False, reason="no worker is ready for any model of the catalogue")
    return Check(name="workers", ok=True, reason=f"ready for {', '.join(models)}")


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0][:300]
