"""The front door: what this is, and a page that documents it without a script or anything from elsewhere."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from api.deps import BaseUrl
from api.docs_page import CONTENT_SECURITY_POLICY, draw_docs
from api.openapi_document import DESCRIPTION
from api.openapi_parts import problems
from api.schemas import Home

router = APIRouter(tags=["about"])


@router.get("/", summary="What answers here", responses=problems(422))
async def home(request: Request, base_url: BaseUrl) -> Home:
    """Say what this is and where to go on."""
    return Home(
        version=request.app.version,
        description=DESCRIPTION,
        docs=f"{base_url}/docs",
        openapi=f"{base_url}/openapi.json",
        links={name: f"{base_url}{path}" for name, path in _LINKS.items()},
    )


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Show the OpenAPI document as one page."""
    headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY}
    return HTMLResponse(draw_docs(request.app.openapi()), headers=headers)


_LINKS = {
    "jobs": "/v1/jobs",
    "batches": "/v1/batches",
    "schedules": "/v1/schedules",
    "models": "/v1/models",
    "workers": "/v1/workers",
    "alive": "/healthz",
    "ready": "/readyz",
}
