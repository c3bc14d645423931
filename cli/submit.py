"""`renderq submit`: order pictures from the server at RENDERQ_URL and save them."""

import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.exits import CliError
from cli.saving import check_output, finish, format_for
from cli.terminal import print_json, print_line, printable, say
from policy.job_cache import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.client import Client, Job

REFERENCE = re.compile(r"(job|sha256):|[0-9a-f]{8}-[0-9a-f]{4}-")
"""How a picture is named that the server has already."""
IMAGE, VIDEO, ORDER, ANSWER = "Picture", "Video", "Order", "Result"


def _field(flag: str, text: str, panel: str) -> Any:  # noqa: ANN401 - what typer.Option returns
    return typer.Option(flag, help=text, rich_help_panel=panel, show_default=False)


def submit(
    prompt: Annotated[str, typer.Argument(help="What to draw.")],
    *,
    model: Annotated[
        str | None, _field("--model", "Default: the model of the workers, if they have one.", IMAGE)
    ] = None,
    negative_prompt: Annotated[str | None, _field("--negative-prompt", "What to avoid.", IMAGE)] = None,
    width: Annotated[int | None, _field("--width", "Pixels.", IMAGE)] = None,
    height: Annotated[int | None, _field("--height", "Pixels.", IMAGE)] = None,
    num_inference_steps: Annotated[
        int | None, _field("--num-inference-steps", "Denoising steps.", IMAGE)
    ] = None,
    guidance_scale: Annotated[
        float | None, _field("--guidance-scale", "Strength of guidance.", IMAGE)
    ] = None,
    seed: Annotated[int | None, _field("--seed", "Same seed, same picture. Default: drawn.", IMAGE)] = None,
    n: Annotated[int | None, _field("--n", "Number of pictures, seeds counting up.", IMAGE)] = None,
    cache: Annotated[
        str | None,
        _field(
            "--cache",
            "Reuse between steps: default, off, quality, balanced, fast, or knobs: preset=fast,fn=2.",
            IMAGE,
        ),
    ] = None,
    quality: Annotated[
        str | None, _field("--quality", "Kernels that may draw it: lossless, or high for faster ones.", IMAGE)
    ] = None,
    boundary_ratio: Annotated[
        float | None,
        _field("--boundary-ratio", "Where two transformers change over, part of the noise range.", VIDEO),
    ] = None,
    lora: Annotated[
        list[str] | None, _field("--lora", "NAME or NAME:SCALE, a LoRA of the model. Repeatable.", IMAGE)
    ] = None,
    output_format: Annotated[str | None, _field("--output-format", "png, jpeg, webp or mp4.", IMAGE)] = None,
    image: Annotated[
        str | None,
        _field("--image", "Picture to start from: a file, or job:ID/INDEX of an earlier result.", IMAGE),
    ] = None,
    mask: Annotated[
        str | None, _field("--mask", "As --image, of its size: white is drawn anew, black kept.", IMAGE)
    ] = None,
    strength: Annotated[
        float | None, _field("--strength", "Way from the image, up to 1, which keeps none of it.", IMAGE)
    ] = None,
    num_frames: Annotated[int | None, _field("--num-frames", "Frames of a video.", VIDEO)] = None,
    fps: Annotated[int | None, _field("--fps", "Frames per second of a video.", VIDEO)] = None,
    priority: Annotated[str | None, _field("--priority", "low, normal or high.", ORDER)] = None,
    queue_timeout_s: Annotated[
        float | None, _field("--queue-timeout-s", "Seconds after which it is not started any more.", ORDER)
    ] = None,
    run_timeout_s: Annotated[
        float | None, _field("--run-timeout-s", "Seconds that a try may take.", ORDER)
    ] = None,
    metadata: Annotated[
        list[str] | None, _field("--metadata", "KEY=VALUE, kept with the job. Repeatable.", ORDER)
    ] = None,
    idempotency_key: Annotated[
        str | None,
        _field("--idempotency-key", "Sent again with this key, it is the same job. Default: drawn.", ORDER),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait for the pictures and save them.", rich_help_panel=ANSWER),
    ] = True,
    output: Annotated[
        Path | None,
        _field(
            "--output",
            "File to write; with --n a number is added. - is standard output. Default: by job.",
            ANSWER,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the job for scripts.", rich_help_panel=ANSWER)
    ] = False,
) -> None:
    """Order pictures and save them here. The server checks every field and names all that are wrong.

    Ctrl-C while waiting leaves the job alone: `renderq get ID` has it later, `renderq cancel ID` stops it.
    """
    from cli.client import connect

    fields = dict(locals())
    if wait:
        check_output(output, n or 1)
    fields["output_format"] = format_for(output, output_format)
    require_text(fields)
    client = connect()
    request = {name: fields[name] for name in REQUEST_FIELDS if fields[name] is not None}
    if cache is not None:
        request["cache"] = read_text(cache)
    request["model"] = model or served_model(client)
    request |= sent_pictures(client, {"image": image, "mask": mask})
    if lora:
        request["lora"] = [_lora(text) for text in lora]
    if metadata:
        request["metadata"] = dict(_pair(text) for text in metadata)
    job = client.submit(request, idempotency_key or str(uuid.uuid4()))
    if not wait:
        _show_sent(job, as_json=as_json)
        return
    if not as_json:
        _announce(job)
    finish(client, job, output, as_json=as_json)


REQUEST_FIELDS = (
    "prompt",
    "negative_prompt",
    "width",
    "height",
    "num_inference_steps",
    "guidance_scale",
    "boundary_ratio",
    "seed",
    "n",
    "cache",
    "quality",
    "output_format",
    "strength",
    "num_frames",
    "fps",
    "priority",
    "queue_timeout_s",
    "run_timeout_s",
)


def sent_pictures(client: "Client", given: "Mapping[str, str | None]") -> dict[str, str]:
    """What names these pictures in a request: files of this machine are sent first."""
    read = {name: _read_picture(name, text) for name, text in given.items() if text is not None}
    return {
        name: client.send_picture(found) if isinstance(found, bytes) else found
        for name, found in read.items()
    }


def _read_picture(name: str, text: str) -> "bytes | str":
    if not Path(text).is_file() and REFERENCE.match(text):
        return text
    if "://" in text:
        raise CliError(f"--{name} {printable(text)} is an address: fetch the picture and name the file")
    try:
        return Path(text).read_bytes()
    except OSError as error:
        raise CliError(f"--{name} {printable(text)} cannot be read: {error.strerror}") from error


def served_model(client: "Client") -> str:
    """The one model that workers serve now; raise `CliError` when there is a choice or none."""
    alive = {worker["model"] for worker in client.workers() if worker["state"] not in ("gone", "failed")}
    if len(alive) == 1:
        return str(alive.pop())
    offered = ", ".join(sorted(alive) or sorted(model["id"] for model in client.models()))
    raise CliError(
        f"{'several models are' if alive else 'no model is'} served now; say --model: one of {offered}"
    )


def require_text(fields: "Mapping[str, object]") -> None:
    """Refuse arguments whose bytes are not UTF-8; no JSON could carry them."""
    for name, value in fields.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
                raise CliError(f"{name} is not UTF-8 text: {text!r}")


def _lora(text: str) -> dict[str, object]:
    name, colon, scale = text.partition(":")
    try:
        return {"name": name} | ({"scale": float(scale)} if colon else {})
    except ValueError:
        raise CliError(f"--lora {text!r} is not NAME or NAME:SCALE") from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise CliError(f"--metadata {text!r} is not KEY=VALUE")
    return key, value


def _announce(job: "Job") -> None:
    """Name the job at once, and say when nobody would take it now."""
    say(f"job {printable(job['id'])}: {printable(job['status'])}")
    for warning in job.get("warnings", []):
        say(f"{printable(warning)}; it waits. Ctrl-C leaves it queued; --queue-timeout-s limits the wait")


def _show_sent(job: "Job", *, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        print_line(printable(job["id"]))
    for warning in job.get("warnings", []):
        say(printable(warning))
