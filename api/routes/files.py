"""Pictures that jobs draw from: send one, look at it, delete it."""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.deps import LOCAL_CALLER, BaseUrl, HeavyWorkDep, PathId, Services, ServicesDep, UploadPlacesDep
from api.heavy import run_heavy
from api.inputs import keep_file, refuse
from api.openapi_parts import PICTURE_FORM, problems, with_headers
from api.schemas import FileView
from api.upload import receive_picture
from api.views import view_file
from core import files
from core.file_tables import File
from core.pictures import BadPicture

router = APIRouter(tags=["files"])


@router.post(
    "/v1/files",
    status_code=201,
    summary="Send a picture",
    responses={
        201: with_headers("The file as it is kept.", FileView, "Location"),
        **problems(400, 403, 408, 413, 415, 422, 503),
    },
    openapi_extra={"requestBody": PICTURE_FORM},
)
async def create_file(
    request: Request,
    response: Response,
    services: ServicesDep,
    base_url: BaseUrl,
    heavy: HeavyWorkDep,
    places: UploadPlacesDep,
) -> FileView:
    """Keep a PNG, JPEG or WebP for jobs to draw from. The same bytes sent again are the same file."""
    async with receive_picture(request, places) as read:
        file = await run_heavy(heavy.uploads, _keep, services, read)
    response.headers["Location"] = f"{base_url}/v1/files/{file.id}"
    return view_file(file, services.settings.file_life_s)


@router.get("/v1/files/{file_id}", summary="Read a file's facts", responses=problems(404, 422, 503))
def get_file(file_id: PathId, services: ServicesDep) -> FileView:
    """Return what the file is and how long it is kept at least; 404 when it is not kept any more."""
    with services.database.reading() as session:
        return view_file(files.get_file(session, file_id, LOCAL_CALLER), services.settings.file_life_s)


@router.delete(
    "/v1/files/{file_id}",
    status_code=204,
    summary="Delete a file",
    responses=problems(403, 404, 409, 422, 503),
)
async def delete_file(file_id: PathId, services: ServicesDep) -> None:
    """Delete the file now; 409 while a job that has not ended, or a schedule, needs it."""
    await run_in_threadpool(_delete, services, file_id)


def _keep(services: Services, read: Callable[[], bytes]) -> File:
    try:
        return keep_file(services, read())
    except BadPicture as words:
        raise refuse(words) from None


def _delete(services: Services, file_id: str) -> None:
    with services.database.transaction() as session:
        file = files.give_up(session, file_id, LOCAL_CALLER)
    services.artifacts.delete(file.key)
    with services.database.transaction() as session:
        files.forget(session, [file.id])
