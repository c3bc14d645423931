"""Combinations that are refused before anything is loaded."""

import pytest

from policy.errors import FieldError
from tests.policy.parts import CPU, FLUX, SCHNELL, TINY, WAN2, gpu, problems, resolved, with_policy


def one(field: str, **flags: object) -> FieldError:
    errors = problems(FLUX, flags)
    assert set(errors) == {field}
    return errors[field]


def test_the_adaptive_preset_refuses_company_in_a_pass() -> None:
    assert "depend on its mates" in one("cache_preset", cache_preset="adaptive", microbatch=4).message
    assert not problems(FLUX, {"cache_preset": "adaptive"})
    assert not problems(FLUX, {"cache_preset": "balanced", "microbatch": 4})


def test_passes_are_not_shared_unseen() -> None:
    assert "the warm-up finds out" in one("warmup", warmup=False, microbatch=2).message


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_refuse_the_cache(mode: str) -> None:
    error = one("compile_mode", compile=True, compile_mode=mode)
    assert "CUDA graphs, which overwrite what the cache keeps" in error.message
    assert not problems(FLUX, {"compile": True, "compile_mode": mode, "cache": False})
    assert not problems(FLUX, {"compile": True, "compile_mode": "max-autotune-no-cudagraphs"})
    assert not problems(FLUX, {"compile": False, "compile_mode": mode})


def test_cuda_graphs_refuse_moving_weights_also_when_the_mode_moves_them() -> None:
    flags = {"compile": True, "compile_mode": "max-autotune", "cache": False}
    assert "moves their weights" in one("compile_mode", **flags, offload="model").message
    memory = {**flags, "performance_mode": "memory"}
    assert ", or --offload none" in problems(FLUX, memory, hardware=gpu(40))["compile_mode"].message
    assert not problems(FLUX, {**flags, "offload": "none"}, hardware=gpu(30))


def test_compile_refuses_weights_that_are_moved_layer_by_layer() -> None:
    assert "weights in place" in one("compile", compile=True, offload="sequential").message
    assert "weights in place" in one("compile", compile=True, offload="group").message
    assert not problems(FLUX, {"compile": True, "offload": "model"})


def test_sizes_to_warm_up_are_refused_without_warm_up() -> None:
    assert "no effect with warmup off" in one("warmup_sizes", warmup=False, warmup_sizes="512x512").message


def test_no_warm_up_and_no_compiling_during_requests_would_never_compile() -> None:
    assert "nothing would ever be compiled" in one("warmup", warmup=False, compile=True).message
    assert not problems(FLUX, {"warmup": False, "compile": True, "new_shape": "compile"})
    assert not problems(FLUX, {"warmup": False})
    assert not problems(FLUX, {"compile": True, "new_shape": "compile"})


@pytest.mark.parametrize("size", ["1000x1000", "4096x1024", "2048x2048", "big", "1024"])
def test_sizes_that_the_model_cannot_draw_are_not_warmed_up(size: str) -> None:
    error = one("warmup_sizes", warmup_sizes=f"1024x1024,{size}")
    assert size in error.message
    assert error.nearest == "1024x1024"


def test_offloading_and_gpu_kernels_need_a_gpu() -> None:
    errors = problems(TINY, {"offload": "model", "attention_backend": "flash"}, hardware=CPU)
    assert set(errors) == {"offload", "attention_backend"}
    assert not problems(TINY, {"offload": "none", "attention_backend": "native"}, hardware=CPU)
    assert not problems(FLUX, {"attention_backend": "flash"})


def test_bfloat16_is_refused_where_it_is_not_computed() -> None:
    assert problems(FLUX, {"dtype": "bfloat16"}, hardware=gpu(bf16=False))["dtype"].nearest == "float32"
    assert not problems(FLUX, {"dtype": "float16"}, hardware=gpu(bf16=False))


def test_what_stays_resident_is_a_component_of_the_model() -> None:
    error = one("keep_resident", keep_resident="vae,unet", offload="model")
    components = "transformer, text_encoder, text_encoder_2 and vae"
    assert error.message == f"keep_resident: flux.1-dev has no unet; its components: {components}"


def test_nothing_stays_resident_when_all_is_moved_layer_by_layer() -> None:
    error = one("keep_resident", keep_resident="vae", offload="sequential")
    assert "no effect with offload sequential" in error.message
    assert error.message.endswith(": leave it out, or --offload model or group")
    small = problems(FLUX, {"keep_resident": "vae"}, hardware=gpu(4))["keep_resident"].message
    assert "leave it out (the weights as they are need 26.8 GB with --offload model and 5.2 GB" in small


def test_the_cache_is_refused_on_a_model_that_never_has_enough_steps() -> None:
    short = SCHNELL.model_copy(update={"steps": SCHNELL.steps.model_copy(update={"maximum": 6})})
    assert problems(short, {"cache": True})["cache"].limit == 6
    assert not problems(short)
    assert not problems(SCHNELL, {"cache": True})


def test_the_predictor_is_refused_on_few_step_models() -> None:
    error = problems(SCHNELL, {"cache_taylorseer": 1})["cache_taylorseer"]
    assert error.nearest == 0
    assert "flux.1-schnell has 4" in error.message
    assert not problems(SCHNELL, {"cache_taylorseer": 0})
    assert not problems(FLUX, {"cache_taylorseer": 2})


def test_a_block_is_left_to_reuse() -> None:
    assert one("cache_fn", cache_fn=60).nearest == 56
    assert one("cache_bn", cache_bn=57).limit == 55
    error = problems(WAN2, {"secondary_cache_fn": 39, "secondary_cache_bn": 2})["secondary_cache_bn"]
    assert (error.limit, error.nearest) == (0, 0)
    assert not problems(FLUX, {"cache_fn": 50, "cache_bn": 6})
    assert not problems(FLUX.model_copy(update={"blocks": None}), {"cache_fn": 60})


def test_second_transformer_knobs_need_a_second_transformer() -> None:
    assert one("secondary_cache_fn", secondary_cache_fn=2).nearest == "cache_fn"
    assert problems(FLUX, env={"RENDERQ_SECONDARY_CACHE_PRESET": "fast"})
    assert not problems(WAN2, {"secondary_cache_fn": 2, "secondary_cache_preset": "fast"})


@pytest.mark.parametrize("knob", ["cache_threshold", "cache_max_consecutive"])
@pytest.mark.parametrize("prefix", ["", "secondary_"])
def test_knobs_of_the_threshold_are_refused_with_a_fixed_mask(prefix: str, knob: str) -> None:
    name = prefix + knob
    error = problems(WAN2, {name: 1})[name]
    assert "has no effect: preset balanced is a fixed step mask" in error.message
    assert f"--{prefix.replace('_', '-')}cache-preset adaptive" in error.message
    assert not problems(WAN2, {name: 1, f"{prefix}cache_preset": "adaptive"})


def test_a_mask_is_refused_with_the_adaptive_preset() -> None:
    assert "has no effect" in one("cache_scm", cache_preset="adaptive", cache_scm="4:1:1").message
    assert not problems(FLUX, {"cache_scm": "4:1:1"})


def test_a_mask_and_a_lead_in_say_the_same_thing_twice() -> None:
    assert (
        "both set the lead-in" in one("cache_warmup_steps", cache_warmup_steps=6, cache_scm="4:1:1").message
    )


def test_a_model_file_may_prepare_knobs_for_a_preset_that_is_not_chosen() -> None:
    spec = with_policy(FLUX, cache_preset="adaptive", cache_threshold=0.3)
    assert resolved(spec)["cache_threshold"] == 0.3
    assert not problems(spec, {"cache_preset": "fast"})
