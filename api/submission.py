"""Takes an order in, new or once more: check it, store it, commit, and only then tell the queue."""

import secrets
from collections.abc import Mapping
from typing import Any

import structlog

from api.deps import LOCAL_CALLER, Services
from api.idempotency import fingerprint
from api.inputs import by_content, by_content_of, resolve
from api.schemas import JobView
from api.serving import Serving
from api.views import NOT_SENT, view_job
from core import store
from core.batches import PRIORITIES
from core.errors import AppError
from core.idempotency import peek_key
from core.requeue import requeue as repeat
from policy.errors import InvalidRequest
from policy.picture_check import check_given
from policy.plan import given_pictures, make_plan
from policy.references import PICTURES
from policy.request import DRAWN_SEED_LIMIT, parse_request
from tasks.app import publish

log = structlog.get_logger(__name__)


def submit(services: Services, body: dict[str, Any], key: str | None, base_url: str) -> tuple[JobView, bool]:
    """Store the order in ``body`` and send its id to the queue of its model.

    When the queue is away the job is stored all the same and upkeep sends it. Blocks for the database and,
    bounded by its socket time-outs, for Redis.

    Returns:
        The job, and whether an earlier call with the same idempotency key had made it.

    Raises:
        InvalidRequest: the order breaks the model's rules; nothing was written.
        IdempotencyMismatch: the key came with another body before.
    """
    if key is not None and (earlier := _find_earlier(services, body, key, base_url)) is not None:
        return earlier, True
    request = parse_request(body, services.catalogue)
    spec = services.catalogue.get_model(request.model)
    body, pictures = resolve(services, body)
    if errors := list(check_given(body, pictures)):
        raise InvalidRequest(errors)
    request = request.model_copy(update={name: body.get(name) for name in PICTURES})
    plan = make_plan(request, spec, _draw_seed, pictures)
    with services.database.transaction() as session:
        job, replayed = store.submit(
            session,
            request=body,
            plan=plan.model_dump(mode="json"),
            model=request.model,
            priority=PRIORITIES[request.priority],
            caller=LOCAL_CALLER,
            metadata=request.metadata,
            queue_timeout_s=request.queue_timeout_s,
            run_timeout_s=request.run_timeout_s,
            max_attempts=services.settings.max_attempts,
            idempotency=None if key is None else (key, fingerprint(by_content(body, pictures))),
            inputs={name: picture.id for name, picture in given_pictures(request, pictures).items()},
        )
        view = view_job(session, job, base_url, Serving(services.heard_within_s))
    if not replayed and _send(services, view):
        view.warnings.remove(NOT_SENT)
    return view, replayed


def _find_earlier(services: Services, body: dict[str, Any], key: str, base_url: str) -> JobView | None:
    """The job that this call has made before, though it could not be ordered any more."""
    with services.database.reading() as session:
        record = peek_key(session, LOCAL_CALLER, key)
        made = None if record is None or record.job_id is None else record.job_id
        job = None if made is None else store.find_job(session, made, LOCAL_CALLER)
        if record is None or job is None:
            return None
        said = by_content_of(body, job)
        if said is None or fingerprint(said) != record.fingerprint:
            return None
        return view_job(session, job, base_url, Serving(services.heard_within_s))


def requeue(
    services: Services, job_id: str, base_url: str, limits: Mapping[str, float]
) -> tuple[JobView, bool]:
    """Order a failed or expired job again and send the new one, unless its batch sends it.

    ``limits`` are other seconds of waiting and running than the old one had.

    Returns:
        The new job, and whether an earlier call had made it.

    Raises:
        NotFound, Conflict: as ``core.requeue``.
    """
    with services.database.transaction() as session:
        job, earlier = repeat(session, job_id, LOCAL_CALLER, limits)
        held = job.held
        view = view_job(session, job, base_url, Serving(services.heard_within_s))
    if not earlier and not held and _send(services, view):
        view.warnings.remove(NOT_SENT)
    return view, earlier


def _send(services: Services, view: JobView) -> bool:
    """Publish the stored job and note it; a note that cannot be written costs a second, harmless message."""
    if not publish(view.id, view.model, PRIORITIES[view.priority], settings=services.settings):
        return False
    try:
        with services.database.transaction() as session:
            store.mark_published(session, view.id, attempt=0)
    except AppError as error:
        log.warning("job.sent_unnoted", job_id=view.id, reason=str(error))
    return True


def _draw_seed() -> int:
    return secrets.randbelow(DRAWN_SEED_LIMIT)
