"""Takes a batch in: check every row, store all of them in one transaction, commit; the feeder sends them."""

import secrets
from typing import Any

from api.bulk_requests import BatchHead, BatchOrder, check_head, check_nothing_wrong, gather
from api.bulk_schemas import BatchView
from api.bulk_views import view_whole_batch
from api.deps import LOCAL_CALLER, Services
from api.inputs import look_up
from api.serving import Serving
from api.upload import Order, Upload
from core import batches
from core.idempotency import find_earlier
from policy.bulk import Order as JobOrder
from policy.bulk import make_orders
from policy.errors import FieldError
from policy.gaps import find_gaps, find_gaps_in_rows
from policy.request import DRAWN_SEED_LIMIT
from policy.windows import check_window


def submit_batch(
    services: Services, upload: Upload, key: str | None, base_url: str
) -> tuple[BatchView, bool]:
    """Store the batch that ``upload`` orders. Takes seconds for ten thousand rows: call it in a thread.

    Returns:
        The batch, and whether an earlier call with the same idempotency key had made it.

    Raises:
        InvalidRequest: With the problems of all rows; nothing was written.
        IdempotencyMismatch: The key came with another body before.
    """
    order = upload.parse()
    idempotency = None if key is None else (key, order.fingerprint())
    if (earlier := _find_earlier(services, idempotency, base_url)) is not None:
        return earlier, True
    errors = list(check_head(order.body, BatchHead, BatchOrder))
    with gather(errors):
        window = read_window(order.body.get("window"))
    orders = check_rows(services, order, errors)
    template = order.body.get("template") or {}
    with services.database.transaction() as session:
        batch, replayed = batches.create_batch(
            session,
            caller=LOCAL_CALLER,
            name=order.body.get("name") or "",
            orders=orders,
            template=template,
            window=window,
            max_attempts=services.settings.max_attempts,
            idempotency=idempotency,
        )
        view = view_whole_batch(session, batch, base_url, Serving(services.heard_within_s))
    view.warnings += find_gaps(template, orders)
    return view, replayed


def _find_earlier(services: Services, idempotency: tuple[str, str] | None, base_url: str) -> BatchView | None:
    """The batch that this call has made before, though it could not be ordered any more."""
    with services.database.reading() as session:
        made = find_earlier(session, LOCAL_CALLER, idempotency, "batch")
        if made is None:
            return None
        batch = batches.get_batch(session, made, LOCAL_CALLER)
        view = view_whole_batch(session, batch, base_url, Serving(services.heard_within_s))
        view.warnings += find_gaps_in_rows(batch.template, batches.fields_of_rows(session, made))
        return view


def check_rows(services: Services, order: Order, errors: list[FieldError]) -> list[JobOrder]:
    """Return the jobs of ``order``; its problems are told with ``errors``, found before."""
    orders: list[JobOrder] = []
    with gather(errors):
        orders = make_orders(
            order.body,
            services.catalogue,
            _draw_seed,
            text_cells=bool(order.text_cells),
            pictures=look_up(services, order.body),
        )
    check_nothing_wrong(errors)
    return orders


def read_window(body: object, timezone: str | None = None) -> dict[str, Any] | None:
    """Return the window that ``body`` describes, in ``timezone`` unless it names its own; None for None."""
    return None if body is None else check_window(body, timezone).model_dump()


def _draw_seed() -> int:
    return secrets.randbelow(DRAWN_SEED_LIMIT)
