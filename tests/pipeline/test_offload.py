"""Offload by component, observed on the real hooks: what moves, what stays, and what survives the moves.

There is no second device here, so moves are seen where they are asked for (`Module.to`): "cpu:0" stands for
the GPU, "cpu" for the host. `tests/gpu` looks at the devices themselves.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.acceleration import Acceleration
from pipeline.boundary import split_steps, transformers_of
from pipeline.compilation import CompilePlan
from pipeline.load import load_pipeline
from pipeline.offload import offload_components
from policy.cache import CacheConfig, CacheDecision
from policy.catalogue import Catalogue
from policy.model_spec import ModelSpec
from tests.fixtures.models import GraphCounter, resolved

HOST, DEVICE = torch.device("cpu"), torch.device("cpu:0")
STEPS = 6
COMPONENTS = ("text_encoder", "text_encoder_2", "transformer", "vae")


def load(spec: ModelSpec, source: str | None = None) -> Any:
    return load_pipeline(spec, resolved(spec), HOST, source)


def draw(pipe: Any, **call: Any) -> torch.Tensor:
    call = {"prompt": "a boat", "width": 64, "height": 64, "max_sequence_length": 16} | call
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        output = pipe(**call, num_inference_steps=STEPS, generator=generator, output_type="pt")
    return getattr(output, "frames", None) if hasattr(output, "frames") else output.images  # type: ignore[return-value]


def cached(*steps: int) -> CacheDecision:
    """Every second step reused, on each transformer."""
    return CacheDecision(
        tuple(
            CacheConfig(
                steps=count,
                mask=tuple((index + 1) % 2 or int(index == count - 1) for index in range(count)),
                fn=1,
                bn=0,
                warmup_steps=1,
                threshold=0.12,
                max_consecutive=3,
                taylorseer=0,
                separate_cfg=False,
            )
            for count in steps
        ),
        "balanced",
        "for a test",
    )


class Moves:
    """Every wish to move a module, in order."""

    def __init__(self, pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._names = {id(part): name for name, part in pipe.components.items()}
        self._seen: list[tuple[str, torch.device]] = []
        to = nn.Module.to

        def noted(module: nn.Module, *where: Any, **more: Any) -> nn.Module:
            name, device = self._names.get(id(module)), more.get("device", where[0] if where else None)
            if name is not None and isinstance(device, str | torch.device):
                self._seen.append((name, torch.device(device)))
            return to(module, *where, **more)

        monkeypatch.setattr(nn.Module, "to", noted)

    def take(self) -> dict[str, list[torch.device]]:
        """What moved since the last look."""
        seen, self._seen = self._seen, []
        return {name: [to for who, to in seen if who == name] for name in {name for name, _ in seen}}


@pytest.mark.parametrize("resident", [(), ("vae",), ("transformer", "vae"), COMPONENTS], ids=len)
def test_what_is_resident_goes_to_the_device_once_and_the_rest_comes_back_after_each_picture(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, resident: tuple[str, ...]
) -> None:
    pipe = load(tiny_spec)
    expected = draw(pipe)
    moves = Moves(pipe, monkeypatch)
    offload_components(pipe, resident, DEVICE)
    placed = moves.take()
    assert {name for name, to in placed.items() if to == [DEVICE]} == set(resident)
    assert all(set(to) == {HOST} for name, to in placed.items() if name not in resident)
    for _ in range(3):
        assert torch.equal(draw(pipe), expected)
        moved = moves.take()
        assert set(moved) == set(COMPONENTS) - set(resident)
        assert all((to[0], to[-1]) == (DEVICE, HOST) for to in moved.values())


def test_a_call_that_fails_sends_back_what_moves_and_nothing_else(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = load(tiny_spec)
    offload_components(pipe, ("transformer",), DEVICE)
    moves = Moves(pipe, monkeypatch)

    def fail(*_: object) -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        draw(pipe, callback_on_step_end=fail)
    pipe.maybe_free_model_hooks()
    moved = moves.take()
    assert "transformer" not in moved
    assert all(to[-1] == HOST for to in moved.values())
    assert {"text_encoder", "text_encoder_2", "vae"} <= set(moved)


def test_a_component_loaded_anew_or_unhooked_moves_as_the_old_one_did(
    tiny_spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, other = load(tiny_spec), load(tiny_spec)
    expected = draw(pipe)
    offload_components(pipe, ("vae",), DEVICE)
    pipe.transformer = other.transformer
    pipe.text_encoder_2 = None
    pipe.text_encoder_2 = other.text_encoder_2
    pipe.enable_model_cpu_offload()
    moves = Moves(pipe, monkeypatch)
    for _ in range(2):
        assert torch.equal(draw(pipe), expected)
        moved = moves.take()
        assert "vae" not in moved
        assert moved["transformer"][-1] == moved["text_encoder_2"][-1] == HOST
        pipe.remove_all_hooks()  # as loading a LoRA does
        pipe.enable_model_cpu_offload()
        assert "vae" not in {name for name, to in moves.take().items() if HOST in to}


def test_a_pipeline_let_go_of_frees_what_stayed_and_what_moved(tiny_spec: ModelSpec) -> None:
    pipe = load(tiny_spec)
    offload_components(pipe, ("transformer",), DEVICE)
    draw(pipe)
    parts = [weakref.ref(getattr(pipe, name)) for name in COMPONENTS]
    del pipe
    gc.collect()
    assert [part() for part in parts] == [None] * len(parts)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("scope", "resident"), [("whole", ("vae",)), ("regional", ("transformer", "vae"))])
def test_cache_and_compile_survive_the_moves(
    tiny_spec: ModelSpec, scope: Any, resident: tuple[str, ...]
) -> None:
    pipe = load(tiny_spec)
    graphs = GraphCounter()
    plan = CompilePlan(wanted=True, scope=scope)
    acceleration = Acceleration(lambda: [pipe.transformer], plan, cache_wanted=True, backend=graphs)
    acceleration.prepare_for(cached(STEPS))
    expected = draw(pipe)
    acceleration.release()

    pipe = load(tiny_spec)
    offload_components(pipe, resident, DEVICE)
    acceleration.prepare_for(cached(STEPS))
    draw(pipe)
    compiled = graphs.graphs
    for _ in range(2):
        acceleration.prepare_for(cached(STEPS))
        assert torch.equal(draw(pipe), expected)
        acceleration.check_executed()
        assert acceleration.cached_steps() == (2,)
        assert acceleration.effective()["compile_scope"] == scope
    assert graphs.graphs == compiled > 0


@pytest.mark.parametrize("resident", [("vae",), ("transformer",), ("transformer_2", "vae")], ids="+".join)
def test_two_transformers_keep_their_caches_whichever_of_them_stays(
    miniature_folder: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, resident: tuple[str, ...]
) -> None:
    from pipeline.miniature import spec_of

    spec = spec_of(Catalogue.load().get_model("wan2.2-t2v-a14b"))
    source = str(miniature_folder(spec.id))
    call = {"num_frames": 5, "guidance_scale": 1.0, "width": 32, "height": 32}

    def prepared() -> tuple[Any, Acceleration, CacheDecision]:
        pipe = load(spec, source)
        acceleration = Acceleration(
            lambda: transformers_of(pipe, spec), CompilePlan(wanted=False), cache_wanted=True
        )
        return pipe, acceleration, cached(*split_steps(pipe, spec, STEPS))

    pipe, acceleration, decision = prepared()
    acceleration.prepare_for(decision)
    expected, reused = draw(pipe, **call), acceleration.cached_steps()
    assert sum(reused) > 0

    pipe, acceleration, decision = prepared()
    offload_components(pipe, resident, DEVICE)
    moves = Moves(pipe, monkeypatch)
    for _ in range(2):
        acceleration.prepare_for(decision)
        assert torch.equal(draw(pipe, **call), expected)
        acceleration.check_executed()
        assert acceleration.cached_steps() == reused
        moved = moves.take()
        assert set(moved) == {"text_encoder", "transformer", "transformer_2", "vae"} - set(resident)
        assert all(to[-1] == HOST for to in moved.values())
