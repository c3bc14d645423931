"""`renderq policy catalogue`: the file of a model, to copy and change."""

from typing import Annotated

import typer

from cli.terminal import print_line, say


def show_file(model: Annotated[str, typer.Argument(help="Id of a model of the catalogue.")]) -> None:
    """Print the catalogue's file of a model: your own of RENDERQ_CATALOGUE_DIR, else the bundled one.

    Where it lies is said on standard error, so `> FOLDER/NAME.toml` makes a copy.
    """
    from core.settings import get_settings
    from policy.model_file import find_file

    own = get_settings().catalogue_dir
    path = find_file(model, *([own] if own else []))
    print_line(path.read_text(encoding="utf-8").removesuffix("\n"))
    say(str(path))
