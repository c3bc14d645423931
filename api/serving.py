"""Who could take a job of a model now, looked up once per model and call."""

from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from core.workers import WorkerState, count_ready, list_workers

_PREPARING = frozenset(
    {
        WorkerState.LOADING,
        WorkerState.MOUNTING,
        WorkerState.COMPILING,
        WorkerState.WARMING,
        WorkerState.DISCONNECTED,
    }
)


@dataclass(slots=True)
class Serving:
    """Answers for one call; a list of jobs asks the database once per model."""

    within_s: float
    """A worker must have been heard of within so many seconds."""
    _known: dict[str, str | None] = field(default_factory=dict)

    def warning(self, session: Session, model: str) -> str | None:
        """Return why no worker would take a job of ``model`` now, or None when one would."""
        if model not in self._known:
            self._known[model] = _find_warning(session, model, self.within_s)
        return self._known[model]


def _find_warning(session: Session, model: str, within_s: float) -> str | None:
    if count_ready(session, model, within_s=within_s):
        return None
    workers = list_workers(session, model=model, ended=False)
    states = [worker.state for worker in workers if worker.state in _PREPARING]
    if states:
        return f"the worker of model {model} is not ready yet: it is {states[0]}"
    return f"no worker is serving model {model} now"
