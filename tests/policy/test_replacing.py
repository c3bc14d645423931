"""A model's file that replaces another keeps its masks and LoRAs as long as the weights are the same."""

from pathlib import Path

import pytest

from policy.catalogue import BUNDLED, Catalogue
from tests.policy.parts import TINY

LOST = (
    "not taken over from the model that it replaces: the step masks for 20, 24 and 28 steps and the LoRA mono"
)
TEXT = (BUNDLED / "tiny.toml").read_text(encoding="utf-8")


def replaced(folder: Path, old: str = "", new: str = "") -> Catalogue:
    assert old in TEXT
    (folder / "tiny.toml").write_text(TEXT.replace(old, new, 1) if old else TEXT, encoding="utf-8")
    return Catalogue.load(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("[limits]", "[policy]\ncompile = true\n[limits]"),
        ("maximum = 50", "maximum = 60"),
        ("blocks = 10", ""),
        ('name = "Tiny scenes"', 'name = "Ours"'),
    ],
)
def test_other_settings_of_the_same_weights_keep_masks_and_loras(tmp_path: Path, old: str, new: str) -> None:
    catalogue = replaced(tmp_path, old, new)
    assert (catalogue["tiny"].curve, catalogue["tiny"].loras) == (TINY.curve, TINY.loras)
    assert catalogue.notes("tiny") == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"bundled:tiny"', '"/models/other"', 'its source is "/models/other", the other\'s "bundled:tiny"'),
        ("blocks = 10", "blocks = 12", "its blocks is 12, the other's 10"),
        ('family = "flux"', 'family = "sd3"', 'its family is "sd3", the other\'s "flux"'),
        ('"bundled:tiny"', '"bundled:tiny"\nrevision = "abc"', 'its revision is "abc", the other\'s not set'),
    ],
)
def test_other_weights_lose_them_and_the_reason_is_told(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    catalogue = replaced(tmp_path, old, new)
    assert (catalogue["tiny"].curve, catalogue["tiny"].loras) == (None, ())
    assert catalogue.notes("tiny") == [f"{tmp_path / 'tiny.toml'}: {LOST}, because {reason}"]


def test_nothing_is_told_of_a_model_that_had_none(tmp_path: Path) -> None:
    text = (BUNDLED / "sana-1.6b.toml").read_text("utf-8").replace("revision = ", 'revision = "x" # ')
    (tmp_path / "sana.toml").write_text(text, encoding="utf-8")
    assert Catalogue.load(tmp_path).notes("sana-1.6b") == []
