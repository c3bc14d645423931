import pytest

from core import errors
from core.errors import AppError


def _all(kind: type[AppError] = AppError) -> list[type[AppError]]:
    return [kind] + [lower for sub in kind.__subclasses__() for lower in _all(sub)]


KINDS = [kind for kind in _all() if kind.__module__ == "core.errors"]


def test_every_code_is_used_once() -> None:
    codes = [kind.code for kind in KINDS]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not errors.InvalidSettings])
def test_the_docstring_is_the_default_message(kind: type[AppError]) -> None:
    assert kind().message == str(kind()) == kind.__doc__
    assert str(kind("Because.")) == "Because."


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    drawn = [line.strip("│├└─ ") for line in (errors.__doc__ or "").splitlines()]
    assert {name for name in drawn if name.isidentifier()} == {kind.__name__ for kind in KINDS}


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.NotFound, 404),
        (errors.Conflict, 409),
        (errors.NotReady, 409),
        (errors.AlreadyFinished, 409),
        (errors.Gone, 410),
        (errors.IdempotencyMismatch, 422),
        (errors.InvalidQuery, 422),
        (errors.Unavailable, 503),
        (errors.DatabaseUnavailable, 503),
        (errors.StoreUnavailable, 503),
    ],
)
def test_every_error_has_its_status(kind: type[AppError], status: int) -> None:
    assert kind.status == status
