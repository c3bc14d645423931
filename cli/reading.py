"""Reads numbers and prompt files of a command line, so that every mistake is told before anything is done."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from policy.errors import FieldError


class Limits(NamedTuple):
    """What a number may be, the one that is nearest to what is no number, and why, if that is not plain."""

    least: int
    most: int
    usual: int
    why: str = ""

    @property
    def words(self) -> str:
        """What follows "must be"."""
        numbers = (
            f"{self.least}" if self.least == self.most else f"an integer from {self.least} to {self.most}"
        )
        return f"{numbers} ({self.why})" if self.why else numbers


class Reader:
    """Collects what is wrong; `finish` raises it all together."""

    def __init__(self) -> None:
        self.errors: list[FieldError] = []

    def numbers(self, label: str, text: str, limits: "Limits") -> list[int]:
        """The integers of a comma-separated list, ascending and each once; `label` begins with the flag."""
        return sorted({self.number(label, part, limits) for part in text.split(",")})

    def number(self, label: str, text: str, limits: "Limits") -> int:
        """The integer; the usual one, with a mistake noted, where it is none or beyond the limits."""
        from policy.given import bad_value
        from policy.options import Option
        from policy.values import BadValueError, read_value

        name = label.split(maxsplit=1)[0].removeprefix("--").replace("-", "_")
        option = Option(name, int, None, "", minimum=limits.least, maximum=limits.most)
        try:
            return int(str(read_value(option, text.strip())))
        except BadValueError as problem:
            nearest = limits.usual if problem.nearest is None else problem.nearest
            within = BadValueError(f"be {limits.words}", [limits.least, limits.most], nearest)
            self.errors.append(bad_value(name, label, text, within))
            return limits.usual

    def prompts(self, file: Path | None) -> list[str] | None:
        """The prompts of the file of ``--prompts``: its lines but empty ones and those that begin with #."""
        if file is None:
            return None
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            self._refuse_file(file, getattr(error, "strerror", None) or "it is not UTF-8 text")
            return None
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            self._refuse_file(file, "it holds no prompt")
        return found or None

    def _refuse_file(self, file: Path, why: str) -> None:
        from policy.wording import closest, quote

        beside = [path.name for path in file.parent.glob("*") if path.is_file() and path != file]
        near = closest(file.name, beside)
        hint = f"; nearest: {file.parent / near}" if near else ""
        self.add(
            "prompts",
            f"--prompts must be a file with a prompt a line, not {quote(str(file))}: {why}{hint}",
            file,
        )

    def add(self, field: str, message: str, value: object) -> None:
        """Note one more mistake."""
        from policy.errors import FieldError
        from policy.wording import show

        self.errors.append(FieldError(field, message, show(str(value))))

    def finish(self) -> None:
        """Raise ``InvalidOptions`` with every mistake, if there is one."""
        from policy.errors import InvalidOptions

        if self.errors:
            raise InvalidOptions(self.errors)
