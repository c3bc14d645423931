"""What can go wrong with a job or a setting, each with a stable code and an HTTP status.

    AppError
    ├── InvalidSettings
    ├── InvalidQuery
    ├── NotFound
    ├── Conflict
    │   ├── AlreadyFinished
    │   ├── FileInUse
    │   └── NotReady
    ├── Gone
    │   └── InputGone
    ├── DamagedArchive
    ├── IdempotencyMismatch
    ├── DatabaseNotUpgraded
    └── Unavailable
        ├── DatabaseUnavailable
        └── StoreUnavailable

The class docstring is the default message.
"""

from typing import ClassVar


class AppError(Exception):
    """The service could not do this."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str | None = None) -> None:
        """Use ``message``, or the class docstring."""
        self.message = message or (type(self).__doc__ or "")
        super().__init__(self.message)


class InvalidSettings(AppError):
    """The settings are wrong."""

    code = "invalid_settings"

    def __init__(self, problems: tuple[str, ...]) -> None:
        """Keep every problem, one sentence each."""
        self.problems = problems
        super().__init__("\n".join(problems))


class InvalidQuery(AppError):
    """The list cannot be read that way."""

    code = "invalid_query"
    status = 422


class NotFound(AppError):
    """There is no such thing, or it is not yours."""

    code = "not_found"
    status = 404


class Conflict(AppError):
    """The job's state does not allow this."""

    code = "conflict"
    status = 409


class AlreadyFinished(Conflict):
    """The job has already finished."""

    code = "already_finished"


class NotReady(Conflict):
    """The result is not ready yet."""

    code = "not_ready"


class FileInUse(Conflict):
    """The file is needed by a job or a schedule."""

    code = "file_in_use"


class Gone(AppError):
    """The file is no longer kept."""

    code = "gone"
    status = 410


class InputGone(Gone):
    """A picture that the job draws from is no longer kept; upload it again and order anew."""

    code = "input_gone"


class DamagedArchive(AppError):
    """An archive is not what it should be."""

    code = "damaged_archive"


class IdempotencyMismatch(AppError):
    """This idempotency key was used before with another request."""

    code = "idempotency_mismatch"
    status = 422


class Unavailable(AppError):
    """The service cannot do this at the moment; try again."""

    code = "unavailable"
    status = 503


class DatabaseUnavailable(Unavailable):
    """The database did not answer; try again."""

    code = "database_unavailable"


class DatabaseNotUpgraded(AppError):
    """The tables of the database are not those that this installation works with."""

    code = "database_not_upgraded"
    status = 503


class StoreUnavailable(Unavailable):
    """The artifact store did not answer; try again."""

    code = "artifact_store_unavailable"
