"""`renderq doctor`: looks at everything a deployment needs and says what to do about what is wrong."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.exits import ExitCode
from cli.terminal import out, print_json, printable, writing

if TYPE_CHECKING:
    from cli.checks import Finding

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> None:
    """Check Python, packages, device, compiler, Valkey, database, Redis, artifacts, workers and the API.

    Looks at what RENDERQ_... points to and starts nothing. Ends with 1 if a check fails.
    """
    from cli.checks import run_checks

    findings = []
    for finding in run_checks():
        findings.append(finding)
        if not as_json:
            show(finding)
    failed = [finding for finding in findings if finding.level == "fail"]
    if as_json:
        print_json({"ok": not failed, "checks": [finding.as_json() for finding in findings]})
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def show(finding: "Finding") -> None:
    """A finding on its line, what to do below it."""
    with writing():
        out().print(f"{finding.level:<5}", style=STYLES[finding.level], end="")
        out().print(f"{finding.name:<11} {printable(finding.text, breaks=True)}", soft_wrap=True)
        if finding.advice:
            out().print(f"{'':16} -> {finding.advice}", soft_wrap=True)
