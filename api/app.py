"""Builds the HTTP application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI

from api.deps import Services, refuse_unknown_parameters
from api.heavy import HeavyWork
from api.middleware import Guard, RequestLog
from api.openapi_document import build_openapi
from api.problems import add_handlers
from api.routes import batch_files, batches, content, files, health, home, jobs, models, schedules, workers
from api.upload import UploadPlaces
from api.waiting import WaitingRoom
from core.artifacts import ArtifactStore
from core.db import Database
from core.settings import Settings, get_settings
from policy.catalogue import Catalogue
from tasks.app import make_app


def create_app(settings: Settings | None = None, *, any_host: bool = False) -> FastAPI:
    """Return the application over the database, the queue and the files that ``settings`` name.

    It opens no connection before the first call needs one and changes no table: the database must have been
    brought up to date before. ``any_host`` answers for every host name, for use behind a proxy that
    authenticates.
    """
    app = FastAPI(
        title="renderq",
        version=version("renderq"),
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,
        dependencies=[Depends(refuse_unknown_parameters)],
        separate_input_output_schemas=False,
    )
    app.state.services = make_services(settings or get_settings())
    app.state.is_stopping = lambda: False
    app.state.waiting_room = WaitingRoom()
    app.state.heavy_work = HeavyWork()
    app.state.upload_places = UploadPlaces()
    for routes in (jobs, content, files, batches, batch_files, schedules, models, workers, health, home):
        app.include_router(routes.router)
    add_handlers(app)
    app.add_middleware(Guard, public_url=app.state.services.settings.public_url, any_host=any_host)
    app.add_middleware(RequestLog)
    app.openapi = lambda: build_openapi(app)  # type: ignore[method-assign]
    return app


def make_services(settings: Settings) -> Services:
    """Open the parts that calls share."""
    extra = [settings.catalogue_dir] if settings.catalogue_dir else []
    return Services(
        settings=settings,
        database=Database(settings.database_url),
        catalogue=Catalogue.load(*extra),
        artifacts=ArtifactStore(settings.artifacts_url),
        broker=make_app(settings),
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.services.database.dispose()
