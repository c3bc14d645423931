"""What is offered."""

from fastapi import APIRouter
from sqlalchemy.orm import Session

from api.deps import Services, ServicesDep
from api.errors import Refused
from api.openapi_parts import problems
from api.schemas import ModelView, Page
from api.views import view_model, view_page
from core.workers import count_ready
from policy.model_spec import ModelSpec

router = APIRouter(tags=["models"])


@router.get("/v1/models", summary="List models", responses=problems(422, 503))
def list_models(services: ServicesDep) -> Page[ModelView]:
    """Return every model of the catalogue, served now or not."""
    with services.database.reading() as session:
        models = [_view(session, spec, services) for spec in services.catalogue.values()]
    return view_page(models)


@router.get("/v1/models/{model_id}", summary="Read a model", responses=problems(404, 422, 503))
def get_model(model_id: str, services: ServicesDep) -> ModelView:
    """Return one model with its limits."""
    spec = services.catalogue.get(model_id)
    if spec is None:
        raise Refused(
            "not_found", f"there is no model {model_id[:100]!r}; there are: {', '.join(services.catalogue)}"
        )
    with services.database.reading() as session:
        return _view(session, spec, services)


def _view(session: Session, spec: ModelSpec, services: Services) -> ModelView:
    return view_model(spec, count_ready(session, spec.id, within_s=services.heard_within_s))
