"""Help of the commands with policy flags."""

import pytest

from policy.options import OPTIONS, SECONDARY
from tests.cli.conftest import Run


@pytest.mark.parametrize("command", [("worker",), ("up",), ("policy", "explain")])
def test_help_shows_every_flag_whole_at_80_columns(renderq: Run, command: tuple[str, ...]) -> None:
    text = renderq(*command, "--help", env={"COLUMNS": "80"}).stdout
    words = text.split()
    shown = [option for option in OPTIONS.values() if not option.name.startswith(SECONDARY)]
    assert [option.flag for option in shown if words.count(option.flag) < 1] == []
    assert "--secondary-<option>" in words
    assert "--secondary-cache-fn" not in words
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
