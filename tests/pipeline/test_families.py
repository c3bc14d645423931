"""Every family of the catalogue is prepared, cached, compiled, repeated and stopped as promised.

A miniature of each model goes through the real engine in processes of its own.
"""

from collections.abc import Iterator

import pytest

from benchmarks.families import HEAD, Families, Row, table
from policy.catalogue import Catalogue

CATALOGUE = Catalogue.load()

pytestmark = pytest.mark.xdist_group("families")  # they share the process that the others are forked from


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Families]:
    families = Families(tmp_path_factory.mktemp("families"))
    yield families
    families.close()


@pytest.mark.parametrize("model_id", tuple(CATALOGUE))
def test_a_family_is_ready_after_its_warm_up_and_repeats_its_pictures(
    model_id: str, families: Families
) -> None:
    row = families.examine(model_id)
    assert row.error == ""
    assert row.graphs > 0, "nothing was compiled"
    assert len(row.warmup_cached[0]) == len(CATALOGUE[model_id].transformers)
    assert all(map(all, row.warmup_cached)), "a warm-up pass reused no step on one of the transformers"
    assert row.cached > 0
    assert row.compiled_calls > 0, "the picture was drawn by uncompiled code"
    assert row.compiles == 0, "a picture waited for the compiler"
    assert row.identical, "a picture changed after others were drawn"
    assert 0 < row.stopped_at < row.steps
    assert row.after_cancel, "the picture after a stopped one is not the one of a fresh process"
    assert row.is_right


def test_the_table_shows_what_went_wrong() -> None:
    lines = list(table([Row("m", "flux", "FluxPipeline", error="LoadFailed: no weights")]))
    assert len(lines) == 3
    assert all(name in lines[0] for name in HEAD)
    assert "NO" in lines[1]
    assert lines[2].strip() == "LoadFailed: no weights"
