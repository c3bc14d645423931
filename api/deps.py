"""What endpoints need, as short annotated names."""

from dataclasses import dataclass
from typing import Annotated

from celery import Celery
from fastapi import Depends, Path, Request
from pydantic import AfterValidator

from api.errors import Refused
from api.heavy import HeavyWork
from api.upload import UploadPlaces
from core.artifacts import ArtifactStore
from core.db import Database
from core.ids import is_id
from core.settings import Settings
from core.workers import taking_within_s
from policy.catalogue import Catalogue
from policy.errors import FieldError

LOCAL_CALLER = "local"
"""Whose the jobs are while there are no keys."""


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one API process, made once by ``create_app``."""

    settings: Settings
    database: Database
    catalogue: Catalogue
    artifacts: ArtifactStore
    broker: Celery
    """For looking whether Redis answers; ids are sent by ``tasks.app.publish``."""

    @property
    def heard_within_s(self) -> float:
        """How long ago a worker may have been heard of to be counted on for the next job."""
        return taking_within_s(self.settings.heartbeat_s)


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def _heavy_work(request: Request) -> HeavyWork:
    work: HeavyWork = request.app.state.heavy_work
    return work


async def _upload_places(request: Request) -> UploadPlaces:
    places: UploadPlaces = request.app.state.upload_places
    return places


async def _base_url(request: Request) -> str:
    """Where callers reach this API: the operator's word, else the address that this call used."""
    services: Services = request.app.state.services
    return (services.settings.public_url or str(request.base_url)).rstrip("/")


def _known_id(text: str) -> str:
    """What is not spelled like an id is not looked for."""
    if not is_id(text):
        raise Refused("not_found", f"{text[:100]!r} is not an id")
    return text


async def refuse_unknown_parameters(request: Request) -> None:
    """A misspelt filter must not give the whole list."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    errors = [
        FieldError(name[:100], _unknown(name, known), limit=sorted(known)) for name in set(names) - known
    ]
    errors += [
        FieldError(name, f"{name} stands {names.count(name)} times in the query")
        for name in known & set(names)
        if names.count(name) > 1
    ]
    if errors:
        errors.sort(key=lambda error: error.field)
        raise Refused("invalid_query", "; ".join(error.message for error in errors), errors=errors)


def _unknown(name: str, known: set[str]) -> str:
    offered = f"known here: {', '.join(sorted(known))}" if known else "this address takes none"
    return f"{name[:100]!r} is not a query parameter; {offered}"


ServicesDep = Annotated[Services, Depends(_services)]
HeavyWorkDep = Annotated[HeavyWork, Depends(_heavy_work)]
UploadPlacesDep = Annotated[UploadPlaces, Depends(_upload_places)]
BaseUrl = Annotated[str, Depends(_base_url)]
PathId = Annotated[str, Path(description="An id as this API gives it."), AfterValidator(_known_id)]
