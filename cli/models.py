"""`renderq models`: what the server offers."""

from typing import Annotated

import typer

from cli.table import print_fitted
from cli.terminal import print_json


def models(*, as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """List the models and how many warm workers each has."""
    from cli.client import connect

    offered = connect().models()
    if as_json:
        print_json(offered)
        return
    rows = [
        (
            model["id"],
            model["kind"],
            model["family"],
            _size(model),
            _draws_from(model),
            model["ready_workers"],
            model["license"],
            model["name"],
        )
        for model in offered
    ]
    print_fitted(
        ("model", "kind", "family", "default size", "draws from", "warm workers", "license", "name"),
        rows,
        drop=("license", "family", "draws from", "kind"),
        least=24,
    )


def _draws_from(model: dict[str, object]) -> str:
    inputs = model.get("inputs")
    able = inputs if isinstance(inputs, dict) else {}
    kinds = {"a picture": able.get("image_to_image"), "a mask": able.get("inpaint")}
    return ", ".join(["text", *(kind for kind, offered in kinds.items() if offered)])


def _size(model: dict[str, object]) -> str:
    size = model["size"]
    default = size.get("default") if isinstance(size, dict) else None
    return "x".join(map(str, default)) if isinstance(default, list) else "-"
