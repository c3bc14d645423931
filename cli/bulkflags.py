"""Arguments and options that the commands of batches and schedules share."""

from pathlib import Path
from typing import Annotated

import typer

BatchId = Annotated[str, typer.Argument(help="Id of the batch.")]
File = Annotated[
    Path | None,
    typer.Argument(help="Table, one job a row: .csv, .tsv, .jsonl or .ndjson.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option(help="Default: that of the template, else the model of the workers.", show_default=False),
]
Template = Annotated[
    str | None,
    typer.Option(
        help="The prompt with {columns} of the file, or a JSON object of request fields.", show_default=False
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns that the prompt does not use, kept for file names and results: sku,title.",
        show_default=False,
    ),
]
Grid = Annotated[
    str | None,
    typer.Option(help='JSON: every row with every value, such as {"seed": [1, 2]}.', show_default=False),
]
WindowOption = Annotated[
    str | None,
    typer.Option("--window", help="Render only at these times of day: 22:00-06:00.", show_default=False),
]
Zone = Annotated[str | None, typer.Option(help="Time zone, such as Europe/Berlin.", show_default=False)]
Watch = Annotated[bool, typer.Option("--watch", help="Show how it goes until it ends.")]
Output = Annotated[Path | None, typer.Option(help="File to write; - is standard output.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")]

ScheduleId = Annotated[str, typer.Argument(help="Id of the schedule.")]
Cron = Annotated[
    str | None,
    typer.Option(
        help="Five fields, such as '0 22 * * *' for 22:00 every day; needs --timezone.", show_default=False
    ),
]
At = Annotated[
    str | None, typer.Option(help="Once, such as 2030-01-31T22:00; needs --timezone.", show_default=False)
]
Every = Annotated[str | None, typer.Option(help="An interval, such as 90m, 6h or 1d.", show_default=False)]
Misfire = Annotated[
    str | None,
    typer.Option(
        help="Times missed while nothing ran: skip them, or once make up for all of them.",
        show_default=False,
    ),
]
Grace = Annotated[
    int | None,
    typer.Option("--misfire-grace", help="Seconds after which a time counts as missed.", show_default=False),
]
