"""`renderq demo`: the whole system for one picture, from nothing to a file, and everything ended again."""

import os
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from cli.terminal import out, print_json, print_line, printable, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.client import Job
    from cli.stack import Stack, StackPlan
    from cli.supervisor import Signals

MODEL = "tiny"
UNKNOWN = "<unk>"
PROMPT = "a white house with a blue roof and an orange tree on a beach and mountains at sunset"


def demo(
    prompt: Annotated[str, typer.Argument(help="What to draw.", show_default=False)] = PROMPT,
    *,
    seed: Annotated[int | None, typer.Option(help="Same seed, same picture. Default: drawn.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Keep database, logs and queue here. Default: a temporary folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the job for scripts.")] = False,
) -> None:
    """Start everything, draw one picture with the bundled model, and stop. Needs no GPU and no network."""
    from cli.supervisor import Signals, StopRequested

    say(f"prompt: {printable(prompt)}")
    for word in unknown_words(prompt):
        say(f"note: the bundled model does not know the word {word!r} and will ignore it")
    with TemporaryDirectory(prefix="renderq-") as folder, Signals() as signals:
        try:
            job, path = draw(
                make_plan(data or Path(folder)), {"prompt": prompt, "seed": seed}, signals, quiet=as_json
            )
        except StopRequested:
            raise KeyboardInterrupt from None
    if as_json:
        print_json(job | {"saved": [str(path)]})
    else:
        tell(job, path)


def make_plan(data: Path) -> "StackPlan":
    """A stack of its own: no setting of the caller's environment may lead it to another database or queue."""
    from cli.stack import StackPlan

    environment = {name: value for name, value in os.environ.items() if not name.startswith("RENDERQ_")}
    return StackPlan(data=data, model=MODEL, port=0, environment=environment)


def draw(
    plan: "StackPlan", fields: dict[str, object], signals: "Signals", *, quiet: bool
) -> "tuple[Job, Path]":
    """Run the stack for one job and save its picture."""
    from cli.progress import show_progress
    from cli.stack import run_stack

    with run_stack(plan, _ignore, _ignore, signals) as stack:
        job = show_progress(states(stack, fields), quiet=quiet)
        return job, save_picture(stack, job)


def states(stack: "Stack", fields: dict[str, object]) -> "Iterator[Job]":
    """The worker's states while it makes itself ready, then those of the job."""
    from cli.client import patiently

    for state in stack.preparation():
        yield {"status": f"worker {state}"}
    client = stack.client()
    request = {name: value for name, value in fields.items() if value is not None} | {"model": MODEL}
    key = str(uuid.uuid4())
    job = patiently(lambda: client.submit(request, key), stack.rest)
    yield job
    yield from client.follow(job["id"], stack.rest)


def save_picture(stack: "Stack", job: "Job") -> Path:
    from cli.client import patiently
    from cli.saving import SHORT, end_with, write_file

    end_with(job)
    path = Path(f"demo-{job['id'][-SHORT:]}.png")
    client = stack.client()
    write_file(path, patiently(lambda: client.content(job["id"], 0), stack.rest))
    return path


def tell(job: "Job", path: Path) -> None:
    """Show the picture on a terminal that can, and say where it is and what it took."""
    from cli.halfblocks import show_picture
    from cli.rendered import describe_rendering

    show_picture(path, out())
    print_line(printable(path.absolute()))
    say(
        f"{job['plan']['width']} x {job['plan']['height']}, enlarge to look; "
        f"seed {job['plan']['seed']}, {describe_rendering(job) or 'done'}"
    )
    say(
        "next: `renderq up`, then `renderq submit`; `renderq inspect " + str(path) + "` shows how it was made"
    )


def unknown_words(prompt: str) -> list[str]:
    """Words that the bundled model has never seen; none when the tokenizers package is not installed."""
    from importlib.resources import files

    try:
        from tokenizers import Tokenizer
    except ImportError:
        return []
    tokenizer = Tokenizer.from_str(
        (files("pipeline") / "tiny" / "tokenizer_2" / "tokenizer.json").read_text()
    )
    encoding = tokenizer.encode(prompt)
    spans = [span for word, span in zip(encoding.tokens, encoding.offsets, strict=True) if word == UNKNOWN]
    return list(dict.fromkeys(prompt[start:end] for start, end in spans))


def _ignore(_name: str, _line: str) -> None:
    """The log files have it."""
