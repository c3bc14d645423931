"""How a job was rendered, in a line: time, reused steps, compiled or not, company in its pass."""

from typing import TYPE_CHECKING

from cli.terminal import printable

if TYPE_CHECKING:
    from cli.client import Job


def describe_rendering(job: "Job") -> str | None:
    """Returns the line; None for a job that nothing was rendered for."""
    done = job.get("acceleration")
    if not done:
        return None
    parts = [_cache(done), "compiled" if done.get("compiled") else None, _company(done)]
    total = (job.get("timings_ms") or {}).get("total")
    seconds = None if total is None else f"{total / 1000:.2f} s"
    return printable(", ".join(part for part in (seconds, *parts) if part))


def _cache(done: "Job") -> str:
    if not done.get("mounted"):
        return "no cache"
    reused = f"{done.get('cached_steps', 0)} of {done.get('steps', '?')} steps"
    return f"{reused} from the cache ({done.get('cache')})"


def _company(done: "Job") -> str | None:
    together = done.get("microbatch") or 1
    return f"{together} pictures in its pass ({done.get('likeness')})" if together > 1 else None
