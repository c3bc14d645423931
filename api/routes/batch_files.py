"""What a batch has made, all together: a ZIP, a table, a contact sheet."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from api.archive import write_archive
from api.batch_rows import each_job, each_row
from api.deps import LOCAL_CALLER, BaseUrl, HeavyWorkDep, PathId, Services, ServicesDep
from api.errors import Refused
from api.file_names import TEMPLATE_LIMIT, BadName, FileNames
from api.heavy import run_heavy
from api.openapi_parts import binary, problems
from api.queries import bad_query
from api.results_table import COLUMN_SEPARATORS, MEDIA_TYPE, ResultsTable, write_csv
from api.tiles import MOST_COLUMNS, ROWS_PER_PAGE, tile_of
from core import batches
from core.lifecycle import ENDED_BATCH, JobState
from core.tables import Batch, Job

router = APIRouter(tags=["batches"])
SAFE = {"Content-Security-Policy": "default-src 'none'; sandbox"}


@router.get(
    "/v1/batches/{batch_id}/content",
    summary="Download the files of a batch",
    response_class=Response,
    responses={
        **binary("application/zip", "The files that there are now, and results.csv."),
        **problems(404, 409, 422, 503),
    },
)
def get_archive(
    request: Request,
    batch_id: PathId,
    services: ServicesDep,
    name: Annotated[
        str | None,
        Query(
            max_length=TEMPLATE_LIMIT,
            description="Template of the files' names: {row}, {index}, {id}, {seed} and what the rows say.",
        ),
    ] = None,
) -> Response:
    """Send the files as a ZIP while it is made; it can be asked for while the batch runs.

    ``results.csv`` comes last and tells of every row. When a file cannot be read the answer breaks off.
    """
    names = _read_names(name, services, batch_id)
    with services.database.reading() as session:
        batch = batches.get_batch(session, batch_id, LOCAL_CALLER)
        _require_file(batch, batches.count_jobs(session, [batch_id])[batch_id][JobState.COMPLETED])
        table = ResultsTable(_checked(each_row(session, batch_id), names))
    pieces = write_archive(each_job(services.database, batch_id), names, table, services.artifacts)
    return _download(request, pieces, "application/zip", f"renderq-{batch_id}.zip")


@router.get(
    "/v1/batches/{batch_id}/results",
    summary="All rows as a table",
    response_class=Response,
    responses={**binary("text/csv", "One line for each row, in order."), **problems(404, 422, 503)},
)
def get_results(
    request: Request,
    batch_id: PathId,
    services: ServicesDep,
    base_url: BaseUrl,
    separator: Annotated[
        Literal["comma", "semicolon", "tab", ",", ";", "\t"],
        Query(description="Between the cells. Excel wants a semicolon where numbers have a comma."),
    ] = "comma",
) -> Response:
    """Send what each row said and what became of it, as CSV in UTF-8 with a byte order mark.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    with services.database.reading() as session:
        batches.get_batch(session, batch_id, LOCAL_CALLER)
        table = ResultsTable(fields for _, fields in each_row(session, batch_id))
    jobs = each_job(services.database, batch_id)
    lines = (table.line(job, _addresses(job, base_url)) for job in jobs)
    pieces = write_csv(table.header, lines, COLUMN_SEPARATORS.get(separator, separator))
    return _download(request, pieces, MEDIA_TYPE, f"renderq-{batch_id}.csv")


@router.get(
    "/v1/batches/{batch_id}/sheet",
    summary="All pictures on one sheet",
    response_class=Response,
    responses={
        **binary("image/png", "Thumbnails with row and first words.", "Link"),
        **problems(404, 422, 503),
    },
)
async def get_sheet(
    *,
    batch_id: PathId,
    services: ServicesDep,
    base_url: BaseUrl,
    heavy: HeavyWorkDep,
    columns: Annotated[int, Query(ge=1, le=MOST_COLUMNS)] = 8,
    page: Annotated[int, Query(ge=1, le=9999, description=f"{ROWS_PER_PAGE} rows each, from 1.")] = 1,
) -> Response:
    """Draw one page of the contact sheet; ``Link`` leads to the pages before and after."""
    png, last = await run_heavy(heavy.pictures, _draw, services, batch_id, columns, page)
    headers = {"Content-Disposition": f'inline; filename="renderq-{batch_id}-{page}.png"', **SAFE}
    url = f"{base_url}/v1/batches/{batch_id}/sheet?columns={columns}&page="
    beside = {"prev": page - 1, "next": page + 1}
    links = [f'<{url}{number}>; rel="{rel}"' for rel, number in beside.items() if 1 <= number <= last]
    return Response(
        png, headers=headers | ({"Link": ", ".join(links)} if links else {}), media_type="image/png"
    )


def _download(request: Request, pieces: Iterator[bytes], media_type: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Accept-Ranges": "none", **SAFE}
    wanted = iter(()) if request.scope.get("renderq_head") else pieces
    return StreamingResponse(wanted, headers=headers, media_type=media_type)


def _read_names(template: str | None, services: Services, batch_id: str) -> FileNames:
    """Look at the batch only when its columns decide whether ``template`` is one."""
    try:
        return FileNames(template)
    except BadName:
        with services.database.reading() as session:
            columns = {name for _, fields in each_row(session, batch_id) for name in fields}
    try:
        return FileNames(template, columns)
    except BadName as bad:
        raise _bad_name(bad) from None


def _bad_name(bad: BadName) -> Refused:
    return Refused("invalid_query", str(bad), errors=[bad.error])


def _checked(rows: Iterator[tuple[int, dict[str, Any]]], names: FileNames) -> Iterator[dict[str, Any]]:
    """Look at every row before the answer begins, so that a wrong template is told and not a torn answer."""
    for row, fields in rows:
        try:
            names.check(row, fields)
        except BadName as bad:
            raise _bad_name(bad) from None
        yield fields


def _require_file(batch: Batch, completed: int) -> None:
    if completed:
        return
    if batch.state in ENDED_BATCH:
        raise Refused("no_result", f"the batch {batch.id} has no files: it is {batch.state}")
    detail = "no job of the batch is completed yet: its files can be read as they come"
    raise Refused("not_ready", detail, headers={"Retry-After": "2"})


def _addresses(job: Job, base_url: str) -> list[str]:
    return [f"{base_url}/v1/jobs/{job.id}/content?index={made.index}" for made in job.artifacts]


# --- the sheet ------------------------------------------------------------------------------------------


def _draw(services: Services, batch_id: str, columns: int, page: int) -> tuple[bytes, int]:
    """Return the picture of one page, and the number of pages."""
    from api.sheet import draw_sheet  # noqa: PLC0415 - Pillow is loaded only where a sheet is drawn

    with services.database.reading() as session:
        batch = batches.get_batch(session, batch_id, LOCAL_CALLER)
        last = -(-batch.total // ROWS_PER_PAGE)
        if page > last:
            raise bad_query("page", f"page must be 1 to {last}, not {page}; nearest: {last}", last, last)
        jobs = batches.batch_jobs(session, batch_id, (page - 1) * ROWS_PER_PAGE, ROWS_PER_PAGE)
    return draw_sheet([tile_of(job, services.artifacts) for job in jobs], columns), last
