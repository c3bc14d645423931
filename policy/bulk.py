"""Many jobs from one call: a template, rows of a table and a grid become checked orders.

The template's texts (`prompt`, `negative_prompt`, values of `metadata`) may name columns in braces. A column
that is called like a field of a request replaces the template's; any other column must be named in a text.
What stands in rows and grid is taken as it is and never read as a template.

Every problem of every row is reported at once; one that lies in the template is reported once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from policy.blame import Blame
from policy.catalogue import Catalogue
from policy.cells import with_nearest
from policy.errors import FieldError, InvalidRequest
from policy.expansion import FIELDS, MAX_ROWS, Expansion, Row, read_expansion
from policy.frame import Frame, read_frame
from policy.picture_check import check_given
from policy.pictures import Given
from policy.plan import NO_PICTURES, RenderPlan, given_pictures, make_plan
from policy.request import RenderRequest, parse_request
from policy.request_shape import MOST_ERRORS
from policy.wording import closest, quote, show

__all__ = ["MAX_ROWS", "Order", "make_orders"]


@dataclass(frozen=True, slots=True)
class Order:
    """One job of a batch, checked.

    Attributes:
        row: From 1, counted over rows x grid.
        fields: What the row and the grid said, also the names that are used in texts only.
        body: The filled request, as a caller would have sent it for a single job.
        request: The same, parsed.
        plan: The same with every gap filled.
        inputs: Ids of the files that it draws from, by field.
    """

    row: int
    fields: dict[str, Any]
    body: dict[str, Any]
    request: RenderRequest
    plan: RenderPlan
    inputs: Mapping[str, str] = field(default_factory=dict)


def make_orders(
    body: Mapping[str, Any],
    catalogue: Catalogue,
    draw_seed: Callable[[], int],
    *,
    text_cells: bool = False,
    pictures: Given = NO_PICTURES,
) -> list[Order]:
    """Makes an order of each row of `body`, or refuses them all.

    Args:
        body: `template`, `rows` and `grid`; rows, grid or both must be there. Other keys are not looked at.
        catalogue: The models that are offered.
        draw_seed: As for `make_plan`; called once for each row that names no seed.
        text_cells: The rows come from a table file in which every cell is text.
        pictures: The files that `references_in` finds in `body`, as far as they are there.

    Raises:
        InvalidRequest: With the problems of all rows.
    """
    expansion = read_expansion(body, text_cells=text_cells)
    frame = read_frame(expansion.template, catalogue, expansion.names)
    blame = Blame(expansion, frame)
    for error in _check_names(expansion, frame):
        blame.add_general(error)
    orders = []
    for row in expansion:
        order = _make_order(row, frame, catalogue, draw_seed, blame, pictures, text_cells=text_cells)
        orders += [] if order is None else [order]
        if blame.full:
            blame.add_general(_unread(row))
            break
    if blame:
        raise InvalidRequest(blame.errors())
    return orders


def _make_order(
    row: Row,
    frame: Frame,
    catalogue: Catalogue,
    draw_seed: Callable[[], int],
    blame: Blame,
    pictures: Given,
    *,
    text_cells: bool,
) -> Order | None:
    body, errors = frame.fill(row)
    request = None
    try:
        request = parse_request(body, catalogue)
        errors += check_given(body, pictures)
    except InvalidRequest as refusal:
        errors += refusal.errors
    for error in errors:
        blame.add(row, with_nearest(error, row.given) if text_cells else error)
    if blame or request is None:
        return None
    plan = make_plan(request, catalogue[request.model], draw_seed, pictures)
    inputs = {name: picture.id for name, picture in given_pictures(request, pictures).items()}
    return Order(row.number, row.fields, body, request, plan, inputs)


def _unread(row: Row) -> FieldError:
    message = f"rows after row {row.number} were not looked at: there are too many problems to tell"
    return FieldError("rows", message, row.number)


def _check_names(expansion: Expansion, frame: Frame) -> Iterator[FieldError]:
    """Yields names in texts that no row has a value for, and columns that nothing asks for."""
    if frame.unread:
        return  # a text that cannot be read may name any column
    columns = sorted(expansion.names)
    unknown = [name for name in columns if name not in FIELDS and name not in frame.names]
    for name in sorted(frame.absent):
        nearest = _closest(name, unknown) or _closest(name, columns)
        yield _absent(name, f"template.{frame.used_in(name)}", columns, nearest)
        unknown = [column for column in unknown if column != nearest]  # one slip, told once
    yield from islice(_unknown_columns(unknown, expansion, frame), MOST_ERRORS)
    if len(unknown) > MOST_ERRORS:
        yield FieldError("rows", f"{len(unknown) - MOST_ERRORS} more columns are unknown", len(unknown))


def _absent(name: str, field: str, columns: list[str], nearest: str | None) -> FieldError:
    hint = f'; did you mean "{nearest}"?' if nearest else ""
    message = f"{field} names {{{name}}}, and no row has a column of that name{hint}"
    return FieldError(field, message, name, columns, nearest)


def _unknown_columns(unknown: list[str], expansion: Expansion, frame: Frame) -> Iterator[FieldError]:
    known = [*RenderRequest.model_fields, *sorted(frame.names)]
    no_header = expansion.text_cells and frozenset().union(*expansion.rows) <= frozenset(unknown)
    for name in unknown:
        nearest = _closest(name, known)
        hint = f'did you mean "{nearest}"?' if nearest else "name it in a text of the template, or remove it"
        hint += "; is the first line of the file the header?" if no_header else ""
        in_grid = name in expansion.grid
        field = f"grid.{show(name)}" if in_grid else str(show(name))
        message = (
            f"nothing uses {'' if in_grid else 'the column '}{quote(name)}{' of the grid' * in_grid}: {hint}"
        )
        yield FieldError(field, message, None, known if nearest else None, nearest)


def _closest(name: str, known: list[str]) -> str | None:
    same = next((word for word in known if word.casefold() == name.casefold()), None)
    return same or closest(name, known) or closest(name.lower(), known)
