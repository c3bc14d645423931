"""The manual's page on policy says what the code does."""

import re
from pathlib import Path

from policy.conflicts import FEW_STEPS
from policy.mask import step_mask
from policy.options import OPTIONS
from policy.reference import main, refresh
from tests.policy.parts import CATALOGUE, FLUX, gpu, resolved

PAGE = Path(__file__).parents[2] / "docs" / "policy.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_of_the_page_are_current() -> None:
    current = refresh(TEXT, CATALOGUE.values())
    assert current == TEXT, "run: python -m policy.reference docs/policy.md"


def test_every_option_and_every_model_stands_on_the_page() -> None:
    for option in OPTIONS.values():
        assert f"| `{option.name}` | " in TEXT
        assert f"`{option.env}`" in TEXT
    for model in CATALOGUE:
        assert f"| `{model}` | " in TEXT


def test_the_page_is_brought_up_to_date_by_one_command(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- generated: presets -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    main(page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "| `balanced` | `4:1:1` | 7 |" in text
    assert "old" not in text


def test_the_example_mask_of_the_page_is_right() -> None:
    shown = re.search(r"24 steps\s+become `([01]+)`", TEXT)
    assert shown is not None
    assert shown[1] == "".join(map(str, step_mask("4:1:2", 24)))


def test_the_example_output_of_the_page_is_what_resolving_says() -> None:
    policy = resolved(FLUX, {"cache": False}, hardware=gpu(79.0))
    lines = re.findall(r"^    (\w+) +(\S+) +(flag|env|model|mode|default) +(.+)$", TEXT, re.MULTILINE)
    assert len(lines) >= 5
    for name, value, source, reason in lines:
        item = policy.options[name]
        assert (str(item.value).lower(), item.source, item.reason) == (value, source, reason)


def test_the_number_of_steps_below_which_nothing_can_be_predicted_is_the_codes() -> None:
    assert f"fewer than {FEW_STEPS} steps" in TEXT
