"""Checks on a miniature of every family that the engine prepares, renders, repeats and recovers.

    python -m benchmarks.families [--json] [--model ID ...]

Each model runs in two processes of its own. The first prepares (load, mount, compile with a backend that
counts graphs, warm up), renders a picture, others with and without guidance, the first again, stops one in
the middle, and renders the first once more; the second process is fresh, compiles nothing, and renders the
first only, which must have the same bytes. The columns tell what was measured, not what was hoped for; the
exit status is 1 if any of it is wrong.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.miniatures import fresh_processes, small_engine
from benchmarks.report import read_arguments, report
from pipeline.errors import Stopped
from policy.catalogue import Catalogue
from policy.plan import RenderPlan

if TYPE_CHECKING:
    from pipeline.engine import Engine

HEAD = (
    *("model", "family", "pipeline", "load s", "mount s", "graphs", "scope", "warm-up reused", "reused"),
    *("render s", "graph calls", "compiles", "identical", "stopped", "after cancel", "cpu s"),
)
OTHER_PROMPT = "two boats at night"


@dataclass(frozen=True, slots=True)
class Row:
    """What one family did.

    Attributes:
        load_s: Wall time of loading; likewise `mount_s` and `render_s`.
        graphs: Graphs that the compiler gave to the backend while preparing.
        scope: What of the transformers is compiled, read from them.
        warmup_cached: Reused steps of each warm-up pass, per transformer.
        cached: Reused steps of the picture.
        compiled_calls: Calls of compiled graphs for the picture.
        compiles: Compilations while rendering all pictures; anything but 0 is wrong.
        identical: Whether the picture has the same bytes after others were rendered.
        stopped_at: Step at which the stopped picture ended.
        after_cancel: Whether the picture after it has the bytes that a fresh process gives, uncompiled.
        cpu_s: CPU time of both processes, without the libraries' import.
        error: What went wrong, if anything did.
    """

    model: str
    family: str
    pipeline: str
    load_s: float = 0.0
    mount_s: float = 0.0
    graphs: int = 0
    scope: str = ""
    warmup_cached: tuple[tuple[int, ...], ...] = ()
    steps: int = 0
    cached: int = 0
    compiled_calls: int = 0
    compiles: int = -1
    render_s: float = 0.0
    identical: bool = False
    stopped_at: int = 0
    after_cancel: bool = False
    cpu_s: float = 0.0
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether everything that must hold does."""
        reused = self.cached and self.warmup_cached and all(map(all, self.warmup_cached))
        return bool(
            not self.error
            and self.graphs
            and reused
            and self.compiled_calls
            and self.compiles == 0
            and 0 < self.stopped_at < self.steps
            and self.identical
            and self.after_cancel
        )


class Families:
    """Builds miniatures into a folder and examines each in processes that know nothing of the others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes = fresh_processes()

    def examine(self, model_id: str) -> Row:
        """Measures one model of the catalogue."""
        used = self._processes.submit(_examine, model_id, self._folder / model_id)
        row, after_cancel = used.result()
        if row.error:
            return row
        fresh = self._processes.submit(_render_when_fresh, model_id, self._folder / model_id)
        expected, cpu_s = fresh.result()
        return _with(row, after_cancel=after_cancel == expected, cpu_s=round(row.cpu_s + cpu_s, 1))

    def close(self) -> None:
        """Ends the processes."""
        self._processes.shutdown()


def _examine(model_id: str, folder: Path) -> tuple[Row, str]:
    spec = Catalogue.load()[model_id]
    row = Row(model_id, spec.family, spec.pipeline_class)
    try:
        row, digest = _measure(row, folder)
        return _with(row, cpu_s=time.process_time()), digest
    except Exception as error:  # noqa: BLE001 - told in the row, so that the other families still run
        return _with(row, error=f"{type(error).__name__}: {error}"), ""


def _measure(row: Row, folder: Path) -> tuple[Row, str]:
    from pipeline.compilation import compiles_so_far
    from pipeline.warmup import guidance_scales

    graphs = CountingBackend()
    engine, plan = small_engine(row.model, folder, graphs, compile=True)
    engine.prepare()
    details = {step.name: step for step in engine.preparation}
    row = _with(
        row,
        load_s=details["load"].seconds,
        mount_s=details["mount"].seconds,
        graphs=graphs.count,
        scope=details["compile"].detail["scope"],
        warmup_cached=tuple(map(tuple, details["warmup"].detail["cached_steps"])),  # type: ignore[call-overload]
        steps=plan.num_inference_steps,
    )
    before, calls, started = compiles_so_far(), graphs.calls, time.perf_counter()
    first, cached = _render(engine, plan)
    seconds = round(time.perf_counter() - started, 3)
    row = _with(row, render_s=seconds, cached=cached, compiled_calls=graphs.calls - calls)
    for scale in guidance_scales(engine.spec):
        _render(engine, plan.model_copy(update={"guidance_scale": scale, "prompt": OTHER_PROMPT}))
    second, _ = _render(engine, plan)
    stopped_at = _stop_in_the_middle(engine, plan)
    third, _ = _render(engine, plan)
    compiles = compiles_so_far() - before
    return _with(row, identical=first == second, stopped_at=stopped_at, compiles=compiles), third


def _render_when_fresh(model_id: str, folder: Path) -> tuple[str, float]:
    # Neither compiled nor warm, which takes a hundredth of the time.
    engine, plan = small_engine(model_id, folder, CountingBackend(), compile=False, warmup=False)
    engine.prepare()
    return _render(engine, plan)[0], time.process_time()


def _render(engine: "Engine", plan: RenderPlan) -> tuple[str, int]:
    """Digest of the finished files, and how many steps were reused."""
    from pipeline.encode import encode

    rendering = engine.render(plan)
    provenance = {"plan": plan.model_dump(mode="json")}
    digest = sha256()
    for picture in rendering.pictures:
        digest.update(encode(picture, plan.output_format, provenance, plan.fps))
    return digest.hexdigest(), int(str(rendering.acceleration["cached_steps"]))


def _stop_in_the_middle(engine: "Engine", plan: RenderPlan) -> int:
    other = plan.model_copy(update={"prompt": OTHER_PROMPT, "seed": 8})
    try:
        engine.render(other, lambda done, total: done <= total // 2)
    except Stopped as stop:
        return stop.step
    return 0


class CountingBackend:
    """A compiler backend that counts its graphs and their calls, and runs them as they are."""

    def __init__(self) -> None:
        self.count = 0
        self.calls = 0

    def __call__(self, graph: Any, _inputs: Sequence[object]) -> Callable[..., object]:  # noqa: ANN401
        self.count += 1

        def run(*inputs: object) -> object:
            self.calls += 1
            return graph.forward(*inputs)

        return run


def _with(row: Row, **changes: object) -> Row:
    return Row(**{**asdict(row), **changes})


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows as text, one family a line."""
    listed = list(rows)
    lines = [HEAD, *map(_cells, listed)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line, row in zip(lines, [None, *listed], strict=True):
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        if row is not None and row.error:
            yield f"    {row.error}"


def _cells(row: Row) -> tuple[str, ...]:
    warmed = "+".join(str(min(column)) for column in zip(*row.warmup_cached, strict=True))
    return (
        row.model,
        row.family,
        row.pipeline,
        f"{row.load_s:.2f}",
        f"{row.mount_s:.3f}",
        str(row.graphs),
        row.scope,
        warmed,
        f"{row.cached} of {row.steps}",
        f"{row.render_s:.2f}",
        str(row.compiled_calls),
        str(row.compiles),
        "yes" if row.identical else "NO",
        f"step {row.stopped_at}",
        "identical" if row.after_cancel else "DIFFERS",
        f"{row.cpu_s:.1f}",
    )


def main() -> int:
    """Runs from the command line."""
    parser = read_arguments(__doc__)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="renderq-") as folder:
        families = Families(Path(folder))
        rows = [families.examine(model_id) for model_id in options.model or Catalogue.load()]
        families.close()
    return report(rows, table, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
