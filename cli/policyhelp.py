"""Help of the commands with policy flags: plain lists, in which no name of an option is cut."""

from typing import Any

from typer.core import TyperCommand

from cli.flags import PANEL

SECOND = ("--secondary-<option>", "The same for a second transformer, for each --cache-<option>.")


class PolicyCommand(TyperCommand):
    """Shows its own options, then those of the policy."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's types are private
        """Write the help without tables, which cut names at 80 columns."""
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's types are private
        """Write the two lists."""
        own: list[tuple[str, str]] = []
        policy: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                chosen = policy if getattr(parameter, "rich_help_panel", None) == PANEL else own
                chosen.append(record)
        for title, rows in (("Options", own), (PANEL, [*policy, SECOND])):
            with formatter.section(title):
                formatter.write_dl(rows)
