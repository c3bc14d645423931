"""Opting in to compile takes measurements."""

from pathlib import Path

import pytest

from policy.errors import InvalidCatalogue
from policy.evidence import Evidence, find_unbacked, load_evidence
from tests.policy.parts import FLUX, TINY, with_policy

OPTED_IN = with_policy(FLUX, compile=True)
WIN = Evidence(
    model=FLUX.id,
    revision=FLUX.revision,
    device="cuda:H200",
    first_eager_s=4.0,
    first_compiled_s=3.0,
    steady_eager_s=3.5,
    steady_compiled_s=2.5,
    versions={"torch": "2.13.0"},
)


def test_a_measured_win_backs_an_opt_in() -> None:
    assert find_unbacked([OPTED_IN, TINY], [WIN]) == []


@pytest.mark.parametrize("change", [{"model": "tiny"}, {"revision": "main"}])
def test_a_measurement_of_another_checkpoint_backs_nothing(change: dict[str, str]) -> None:
    (message,) = find_unbacked([OPTED_IN], [WIN.model_copy(update=change)])
    assert "nothing was measured" in message


@pytest.mark.parametrize("change", [{"first_compiled_s": 4.0}, {"steady_compiled_s": 3.6}])
def test_compiling_must_win_on_the_first_request_and_in_the_steady_state(change: dict[str, float]) -> None:
    loss = WIN.model_copy(update={**change, "device": "cuda:L4"})
    (message,) = find_unbacked([OPTED_IN], [WIN, loss])
    assert message == "flux.1-dev opts in to compile, and compiling loses on cuda:L4"


def test_a_model_that_does_not_opt_in_needs_no_evidence() -> None:
    assert find_unbacked([FLUX, with_policy(FLUX, compile=False)], []) == []


def test_rows_are_read_from_every_file_of_a_folder(tmp_path: Path) -> None:
    row = "\n".join(
        f"{key} = {value!r}".replace("'", '"') for key, value in WIN.model_dump(exclude={"versions"}).items()
    )
    for name in ("a.toml", "b.toml"):
        (tmp_path / name).write_text(f'[[rows]]\n{row}\nversions = {{ torch = "2.13.0" }}\n')
    assert load_evidence(tmp_path) == (WIN, WIN)


@pytest.mark.parametrize("text", ["rows = 1", "[[rows]]\nmodel = 'x'", "x = ", "other = 1"])
def test_a_file_that_is_no_evidence_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InvalidCatalogue, match=r"bad\.toml"):
        load_evidence(tmp_path)


def test_no_folder_holds_no_evidence(tmp_path: Path) -> None:
    assert load_evidence(tmp_path / "absent") == ()
