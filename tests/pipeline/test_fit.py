"""Fitting step masks: forks are exact, and what is found beats the rules on other prompts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.engine import Engine
from pipeline.errors import Unsupported
from pipeline.fit import Bench, Prompts, Task, fit, load, main, psnr, read_prompts
from pipeline.mask_search import Range, goal, search
from policy.catalogue import Catalogue
from policy.mask import step_mask

STEPS = 8
TEXTS = ["a white house with a blue roof on a beach", "a boat with a red sail on the sea at night"]
OTHERS = ["a red house with a gray roof in the snow", "an orange tree on a meadow at sunset"]


@pytest.fixture(scope="module")
def bench(tiny_engine: Engine) -> Bench:
    return Bench(tiny_engine, batch=8)


def latents(bench: Bench, prompts: Prompts, mask: str, order: int) -> torch.Tensor:
    """What the pipeline itself makes of a mask."""
    from policy.cache import with_mask

    bench.acceleration.prepare_for(with_mask(tuple(map(int, mask)), order))
    arguments = {**bench.arguments(prompts, len(mask)), "output_type": "latent"}
    with torch.no_grad():
        return bench.pipe(**arguments).images  # type: ignore[no-any-return]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_fork_ends_where_the_pipeline_ends_with_that_mask(bench: Bench, order: int) -> None:
    prompts = Prompts(TEXTS, 5)
    trajectory = bench.record(prompts, STEPS)
    first = trajectory.start(bench.acceleration, order)
    shared = trajectory.advance(trajectory.advance(first, computed=True), computed=True)
    ends = {}
    for mask in ("11010101", "11111111", "11100101"):  # each leaves the shared way where it differs
        node = shared
        for digit in mask[2:]:
            node = trajectory.advance(node, computed=digit == "1")
        ends[mask] = node
        assert "".join(map(str, node.mask)) == mask
    trajectory.check(ends["11111111"])
    for mask, node in ends.items():
        assert torch.allclose(node.latents, latents(bench, prompts, mask, order), atol=1e-5)


def test_a_search_finds_what_trying_every_mask_finds(bench: Bench) -> None:
    from itertools import product

    trajectory = bench.record(Prompts(TEXTS, 5), 6)
    found = search(trajectory, bench.acceleration, 1, Range(1, 3, beam=4))
    values: dict[int, list[tuple[float, str]]] = {}
    for inner in product("01", repeat=3):
        node = trajectory.start(bench.acceleration, 1)
        for digit in (mask := "11" + "".join(inner) + "1"):
            node = trajectory.advance(node, computed=digit == "1")
        values.setdefault(mask.count("0"), []).append((goal(trajectory.errors(node)), mask))
    for reused in (1, 2, 3):
        assert "".join(map(str, found[reused][0].mask)) == max(values[reused])[1]


def test_fitted_masks_beat_the_rules_at_equal_reuse_on_other_prompts(bench: Bench) -> None:
    others = Prompts(OTHERS, 50)
    points = fit(bench, Task([12], Prompts(TEXTS, 5), others, orders=(2,)), report=lambda _: None)
    point = next(point for point in points if point["mask"].count("0") == 4)
    uncached = bench.pictures(others, 12, None)
    rule = "".join(map(str, step_mask("fast", 12)))
    assert rule.count("0") == 4
    assert point["check_mean_db"] > psnr(bench.pictures(others, 12, rule, 1), uncached).mean() + 3
    assert [point["mask"].count("0") for point in points] == [2, 3, 4, 5, 6, 7, 8]


def test_a_model_whose_steps_are_not_one_call_is_refused() -> None:
    for model in ("wan2.2-t2v-a14b", "qwen-image"):
        with pytest.raises(Unsupported, match="call one transformer once per step"):
            load(Catalogue.load()[model], None, 8)


def test_it_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("# two\na house\n\na boat\n")
    assert read_prompts(file) == ["a house", "a boat"]
    assert main(["--prompts", str(file), "--fit-prompts", "2"]) == 1
    assert "--fit-prompts must be an integer from 1 to 1, not 2: there are 2" in capsys.readouterr().err
    assert main(["--model", "flux.1-dev"]) == 1
    assert "name a file with --prompts" in capsys.readouterr().err


def test_one_line_of_json_holds_the_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join([*TEXTS, *OTHERS]))
    arguments = ["--steps", "4", "--prompts", str(file), "--fit-prompts", "2", "--orders", "1"]
    assert main(arguments) == 0
    written = capsys.readouterr()
    result: dict[str, Any] = json.loads(written.out)
    assert "{" not in written.err
    progress = [line for line in written.err.splitlines() if line.startswith("4 steps")]
    assert progress[0] == "4 steps, predictor of order 1 ..."
    assert progress[-1].startswith("4 steps: 1 reused, order 1: ")
    assert [point["mask"] for point in result["masks"]] == ["1101"]
    assert (result["model"], result["prompts"], result["check_prompts"]) == ("tiny", 2, 2)
