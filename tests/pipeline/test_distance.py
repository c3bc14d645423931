"""How far pictures are from each other, and which weights a folder holds."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.distance import measure_distance
from pipeline.fingerprint import hash_bundled, hash_weights

GRAY = np.full((8, 8, 3), 100, np.uint8)


def shifted(by: int) -> np.ndarray:
    return np.full_like(GRAY, 100 + by)


def test_the_same_bytes_are_at_no_distance() -> None:
    assert measure_distance([GRAY, GRAY], [GRAY, GRAY]) == (None, None)


def test_decibels_are_of_the_mean_squared_error_of_all_pictures_and_of_the_worst() -> None:
    all_db, worst_db = measure_distance([shifted(10), GRAY], [GRAY, GRAY])
    assert worst_db == pytest.approx(20 * np.log10(255 / 10), abs=0.05)
    assert all_db == pytest.approx(20 * np.log10(255 / 10) + 10 * np.log10(2), abs=0.05)
    # Squares of unsigned bytes would wrap.
    assert measure_distance([shifted(-50)], [GRAY])[1] == pytest.approx(20 * np.log10(255 / 50), abs=0.05)


def test_the_hash_is_of_names_and_contents_of_the_components_weights_alone(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"a": ["diffusers", "X"], "b": ["diffusers", "X"]}')
    for name in ("a", "loras"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"1")
    first = hash_weights(tmp_path)
    (tmp_path / "loras" / "model.safetensors").write_bytes(b"2")
    (tmp_path / "a" / "notes.txt").write_text("x")
    assert hash_weights(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    assert hash_weights(tmp_path) != first
    (tmp_path / "b" / "model.safetensors").write_bytes(b"2")
    assert hash_weights(tmp_path) != first
    assert hash_bundled("owner/name") is None
