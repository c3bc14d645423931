"""Opting in to compile takes measurements."""

import datetime as dt
import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.fingerprint import hash_bundled
from policy.catalogue import Catalogue
from policy.errors import InvalidCatalogue
from policy.evidence import Evidence, Figures, find_age, find_unbacked, load_evidence, why_not_counted
from policy.model_spec import ModelSpec
from tests.policy.parts import FLUX, TINY, with_policy

ROOT = Path(__file__).parents[2]
OPTED_IN = with_policy(FLUX, compile=True)
VERSIONS = {"torch": "2.13.0", "diffusers": "0.42.1", "cache-dit": "1.5.3"}


def figures(first_s: float, steady_s: float, **more: Any) -> Figures:
    usual: dict[str, Any] = {
        "ready_s": 9.0,
        "compiles_warmup": 0,
        "compiles_requests": 0,
        "memory_mb": 30000.0,
    }
    return Figures(**{"cache": "balanced", "first_s": first_s, "steady_s": steady_s, **usual, **more})


EAGER = figures(4.0, 3.5)
WIN = Evidence(
    model=FLUX.id,
    revision=FLUX.revision,
    device="cuda",
    device_name="NVIDIA H200",
    date=dt.date(2026, 12, 1),
    command="renderq bench model flux.1-dev",
    rounds=3,
    requests=7,
    steps=28,
    width=1024,
    height=1024,
    load=1.0,
    versions={**VERSIONS, "torch": "2.13.0+cu130", "python": "3.11.9"},
    figures=(EAGER, figures(3.0, 2.5, scope="regional")),
)


def loss(first_s: float = 3.0, steady_s: float = 2.5, **more: Any) -> dict[str, Any]:
    return {"figures": (EAGER, figures(first_s, steady_s, scope="regional", **more))}


def unbacked(
    *rows: Evidence, spec: ModelSpec = OPTED_IN, weights: dict[str, str] | None = None
) -> str | None:
    messages = find_unbacked([spec, TINY], rows, VERSIONS, weights or {})
    return messages[0] if messages else None


def test_the_catalogue_opts_in_only_with_evidence_for_the_pinned_versions() -> None:
    """This is the check that fails when a model's file opts in without a row that backs it."""
    pins = dict(re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    versions = {name.replace("_", "-"): version for name, version in pins.items()}
    specs = Catalogue.load().values()
    hashes = {spec.id: found for spec in specs if (found := hash_bundled(spec.source))}
    assert find_unbacked(specs, load_evidence(), versions, hashes) == []
    assert "tiny" in hashes
    for name in ("torch", "diffusers", "cache-dit"):
        installed = importlib.metadata.version(name)
        assert find_age({**VERSIONS, name: installed}, {**VERSIONS, name: versions[name]}) is None


def test_rows_of_the_bundled_model_are_of_its_weights() -> None:
    rows = [row for row in load_evidence() if row.model == "tiny"]
    assert {row.weights for row in rows} == {hash_bundled("bundled:tiny")}


def test_the_check_and_whoever_shows_a_row_have_one_answer_on_whether_it_counts() -> None:
    only_whole = {"figures": (EAGER, figures(3.0, 2.5, scope="whole"))}
    for change in ({"device": "cpu"}, {"rounds": 2}, {"revision": "main"}, only_whole):
        row = WIN.model_copy(update=change)
        doubt = why_not_counted(row, OPTED_IN, VERSIONS, {})
        assert doubt is not None
        assert unbacked(row) == f"flux.1-dev opts in to compile, and no row counts (NVIDIA H200: {doubt})"
    assert why_not_counted(WIN, OPTED_IN, VERSIONS, {}) is None


def test_a_measured_win_backs_an_opt_in() -> None:
    assert unbacked(WIN) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "tiny"}, "nothing was measured"),
        ({"device": "cpu"}, "no row counts (NVIDIA H200: measured on a CPU, where an opt-in has no effect)"),
        ({"revision": "main"}, "measured at revision main"),
        ({"rounds": 2}, "2 of 3 rounds"),
        ({"versions": {**VERSIONS, "torch": "2.12.1"}}, "old: torch was 2.12.1 and is 2.13.0"),
        (loss(first_s=4.0), "does not win on NVIDIA H200"),
        (loss(steady_s=3.5), "does not win on NVIDIA H200"),
        (loss(compiles_requests=1), "does not win on NVIDIA H200"),
        (
            {"figures": (EAGER, figures(3.0, 2.5, scope="whole"))},
            "regional/balanced was not measured beside eager/balanced",
        ),
        (
            {"figures": (EAGER, figures(3.0, 2.5, scope="regional", cache="off"))},
            "regional/balanced was not measured beside eager/balanced",
        ),
        (
            {"figures": (figures(3.0, 2.5, scope="regional"),)},
            "regional/balanced was not measured beside eager/balanced",
        ),
    ],
)
def test_nothing_else_backs_it(change: dict[str, Any], told: str) -> None:
    message = unbacked(WIN.model_copy(update=change))
    assert message is not None
    assert told in message
    assert message.startswith("flux.1-dev opts in to compile, and ")


def test_the_scope_and_the_cache_are_those_of_the_models_file() -> None:
    spec = with_policy(FLUX, compile=True, compile_scope="whole", cache=False)
    won = (figures(4.0, 3.5, cache="off"), figures(3.0, 2.5, cache="off", scope="whole"))
    assert unbacked(WIN.model_copy(update={"figures": won}), spec=spec) is None
    assert unbacked(WIN, spec=spec) is not None


def test_a_loss_on_another_device_is_a_loss_and_the_newest_row_of_a_device_counts() -> None:
    other = WIN.model_copy(update={**loss(first_s=5.0), "device_name": "NVIDIA L4"})
    message = unbacked(WIN, other)
    assert message == "flux.1-dev opts in to compile, and compiling does not win on NVIDIA L4"
    newer = WIN.model_copy(update={"device_name": "NVIDIA L4", "date": dt.date(2026, 12, 2)})
    assert unbacked(newer, WIN, other) is None
    assert unbacked(WIN, other.model_copy(update={"versions": {**VERSIONS, "torch": "2.12.0"}})) is None


def test_a_newer_row_that_measured_other_ways_changes_nothing_and_one_that_failed_does() -> None:
    newer = {"date": dt.date(2026, 12, 2), "figures": (EAGER, figures(9.0, 9.0, scope="whole"))}
    assert unbacked(WIN, WIN.model_copy(update=newer)) is None
    failed = WIN.model_copy(update={**newer, "failed": ("regional/balanced: it does not compile",)})
    assert "does not win on NVIDIA H200" in (unbacked(WIN, failed) or "")


def test_where_the_weights_are_known_the_row_must_be_of_them() -> None:
    known = {FLUX.id: "abc"}
    assert "other weights" in (unbacked(WIN, weights=known) or "")
    assert unbacked(WIN.model_copy(update={"weights": "abc"}), weights=known) is None


@pytest.mark.parametrize(
    ("name", "now", "told"),
    [
        ("torch", "2.13.4+cpu", None),
        ("torch", "2.14.0", "old: torch was 2.13.0 and is 2.14.0"),
        ("torch", "3.13.0", "old: torch was 2.13.0 and is 3.13.0"),
        ("cache-dit", "1.5.9", None),
        ("cache-dit", "1.6.0", "old: cache-dit was 1.5.3 and is 1.6.0"),
        ("diffusers", "0.43.0", "old: diffusers was 0.42.1 and is 0.43.0"),
        ("transformers", "9.0", None),
    ],
)
def test_a_row_is_old_with_another_minor_version(name: str, now: str, told: str | None) -> None:
    assert find_age(VERSIONS, {**VERSIONS, name: now}) == told


def test_what_is_not_installed_or_was_not_noted_cannot_be_judged() -> None:
    without = {name: version for name, version in VERSIONS.items() if name != "torch"}
    assert find_age(VERSIONS, without) == "old: torch was 2.13.0 and is not installed"
    assert find_age(without, VERSIONS) == "old: torch was not noted and is 2.13.0"


def test_a_model_that_does_not_opt_in_needs_no_evidence() -> None:
    assert unbacked(spec=FLUX) is None
    assert unbacked(spec=with_policy(FLUX, compile=False)) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rows = 1", "rows must be a list, not 1"),
        ("[[rows]]\nmodel = 'x'", "rows.0.date is missing"),
        ("[[rows]]\nmodle = 'x'", 'rows.0.modle = "x" is not known here; did you mean model\\?'),
        ("x = ", "Invalid value"),
        ("other = 1", "rows is missing"),
        ("\xff", "utf-8"),
    ],
)
def test_a_file_that_is_no_evidence_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidCatalogue, match=rf"bad\.toml: .*{words}"):
        load_evidence(tmp_path)


def test_a_figure_that_is_no_time_is_refused_by_name(tmp_path: Path) -> None:
    bundled = (ROOT / "policy" / "evidence" / "tiny.toml").read_text(encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(re.sub(r"first_s = .*", "first_s = inf", bundled), encoding="utf-8")
    with pytest.raises(InvalidCatalogue, match=r"rows\.0\.figures\.0\.first_s must be"):
        load_evidence(tmp_path)


def test_no_folder_holds_no_evidence(tmp_path: Path) -> None:
    assert load_evidence(tmp_path / "absent") == ()
