"""Which source wins, what the reasons say, and that everything wrong is reported at once."""

import itertools
import json

import pytest

from policy.errors import InvalidOptions
from policy.explain import rows
from policy.modes import Hardware
from policy.options import OPTIONS
from policy.resolve import Policy, resolve
from tests.policy.parts import CATALOGUE, CPU, FLUX, SCHNELL, TINY, WAN2, gpu, problems, resolved, with_policy

OPTED_IN = with_policy(FLUX, compile=True)
MODES = ("manual", "auto", "speed", "memory")
# Settings of other parts of renderq and of its neighbours; none is an option, none may be taken for a slip.
OTHER_SETTINGS = (
    *("DATA_DIR", "DATABASE_URL", "REDIS_URL", "ARTIFACTS_URL", "CATALOGUE_DIR", "MODELS_DIR", "PUBLIC_URL"),
    *(
        "LEASE_S",
        "HEARTBEAT_S",
        "UPKEEP_INTERVAL_S",
        "MAX_ATTEMPTS",
        "LOG_FORMAT",
        "LOG_LEVEL",
        "URL",
        "HOST",
    ),
    *("PORT", "API_KEY", "WORKER_ID", "MODEL", "DRAIN_S", "TOKEN", "DEBUG"),
)


def test_every_option_has_a_value_a_source_and_a_reason() -> None:
    for spec, hardware in itertools.product(CATALOGUE.values(), (CPU, gpu(), gpu(24), gpu(8))):
        policy = resolved(spec, hardware=hardware)
        assert list(policy.options) == list(OPTIONS)
        for item in policy.options.values():
            assert item.source in {"flag", "env", "model", "mode", "default"}
            assert item.reason


def test_flag_beats_environment_beats_model_file_beats_default() -> None:
    spec = with_policy(FLUX, cache_preset="quality")
    assert resolved(FLUX)["cache_preset"] == "balanced"
    assert resolved(spec)["cache_preset"] == "quality"
    by_env = resolved(spec, env={"RENDERQ_CACHE_PRESET": "fast"})
    assert by_env["cache_preset"] == "fast"
    by_flag = resolved(spec, {"cache_preset": "adaptive"}, {"RENDERQ_CACHE_PRESET": "fast"})
    assert by_flag["cache_preset"] == "adaptive"
    sources = [
        policy.options["cache_preset"].source for policy in (resolved(FLUX), resolved(spec), by_env, by_flag)
    ]
    assert sources == ["default", "model", "env", "flag"]


def test_a_value_equal_to_the_default_counts_as_given() -> None:
    policy = resolved(with_policy(FLUX, cache=False), {"cache": True})
    assert policy["cache"] is True
    assert policy.options["cache"].source == "flag"
    assert resolved(env={"RENDERQ_CACHE": "true"}).options["cache"].source == "env"


def test_a_flag_that_a_parser_left_at_none_was_not_given() -> None:
    assert resolved(flags={"cache": None}).options["cache"].source == "default"


def test_the_reason_says_how_it_was_given_and_what_it_overruled() -> None:
    policy = resolved(flags={"cache": False}, env={"RENDERQ_CACHE": "1", "RENDERQ_NEW_SHAPE": "eager"})
    reason = policy.options["cache"].reason
    assert reason == "given as --no-cache, which is stronger than RENDERQ_CACHE=1"
    assert resolved(SCHNELL).options["cache"].reason == "set in the model's file"
    warm = resolved(flags={"warmup_sizes": "512x512"}).options["warmup_sizes"]
    assert (warm.value, warm.reason) == (("512x512",), "given as --warmup-sizes 512x512")


@pytest.mark.parametrize("mode", MODES)
def test_compile_is_off_by_default_in_every_mode(mode: str) -> None:
    item = resolved(flags={"performance_mode": mode}).options["compile"]
    assert (item.value, item.source) == (False, "default")
    assert "opt in with --compile or RENDERQ_COMPILE=true" in item.reason


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("opted_in", [None, True, False])
def test_an_explicit_compile_wins_in_every_mode(mode: str, value: bool, opted_in: bool | None) -> None:
    spec = FLUX if opted_in is None else with_policy(FLUX, compile=opted_in)
    flag = resolved(spec, {"performance_mode": mode, "compile": value}).options["compile"]
    assert (flag.value, flag.source) == (value, "flag")
    env = resolved(spec, {"performance_mode": mode}, {"RENDERQ_COMPILE": str(value)}).options["compile"]
    assert (env.value, env.source) == (value, "env")


@pytest.mark.parametrize("mode", MODES)
def test_a_models_opt_in_counts_in_speed_mode_only(mode: str) -> None:
    item = resolved(OPTED_IN, {"performance_mode": mode}).options["compile"]
    assert item.value is (mode == "speed")
    assert item.source == ("model" if mode == "speed" else "default")
    hint = (
        "opt out with --no-compile"
        if mode == "speed"
        else "opt in with --performance-mode speed or --compile"
    )
    assert hint in item.reason


def test_a_models_refusal_is_named_as_the_source() -> None:
    item = resolved(with_policy(FLUX, compile=False), {"performance_mode": "speed"}).options["compile"]
    assert (item.value, item.source) == (False, "model")


@pytest.mark.parametrize("mode", MODES)
def test_a_cpu_only_normalises_the_mode(mode: str) -> None:
    policy = resolved(with_policy(TINY, compile=True), {"performance_mode": mode.upper()}, hardware=CPU)
    assert policy["performance_mode"] == mode
    assert policy["compile"] is False
    assert [name for name, item in policy.options.items() if item.source == "mode"] == []
    assert (policy["offload"], policy["keep_resident"], policy["vae_tiling"]) == ("none", (), False)
    assert resolved(TINY, {"compile": True}, hardware=CPU)["compile"] is True


def test_an_unknown_mode_is_refused_on_a_cpu_too() -> None:
    assert problems(TINY, {"performance_mode": "fastest"}, hardware=CPU)["performance_mode"].limit == list(
        MODES
    )


def test_everything_wrong_is_reported_together() -> None:
    flags = {
        "compille": True,
        "cache_fn": "-1",
        "secondary_cache_fn": 2,
        "warmup_sizes": "64x64,96x64",
        "dtype": "int8",
    }
    env = {"RENDERQ_MICROBATCH": "17", "RENDERQ_COMPILE_SCPE": "whole", "RENDERQ_DATABASE_URL": "x"}
    errors = problems(TINY, flags, env, CPU)
    assert set(errors) == {*flags, "microbatch", "RENDERQ_COMPILE_SCPE"}
    assert errors["compille"].message == "--compille is not an option; did you mean --compile?"
    assert errors["compille"].nearest == "compile"
    assert errors["cache_fn"].message == '--cache-fn must be at least 1, not "-1"; nearest: 1'
    assert errors["microbatch"].message == 'RENDERQ_MICROBATCH must be at most 16, not "17"; nearest: 16'
    assert errors["RENDERQ_COMPILE_SCPE"].nearest == "RENDERQ_COMPILE_SCOPE"
    assert errors["warmup_sizes"].nearest == "64x64"
    with pytest.raises(InvalidOptions, match=r"--compille.*--cache-fn"):
        resolve(TINY, flags=flags, env=env, hardware=CPU)


def test_a_bad_value_is_reported_even_where_a_stronger_source_overrules_it() -> None:
    assert (
        "RENDERQ_CACHE must be true or false"
        in problems(flags={"cache": True}, env={"RENDERQ_CACHE": "?"})["cache"].message
    )


def test_a_value_that_cannot_be_read_raises_no_conflicts_about_the_default_in_its_place() -> None:
    errors = problems(flags={"cache_preset": "adaptiv", "cache_threshold": 0.2})
    assert set(errors) == {"cache_preset"}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_other_settings_are_not_taken_for_slips(name: str) -> None:
    assert not problems(env={f"RENDERQ_{name}": "x"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("COMPIL", "COMPILE"),
        ("CACHE_PRESETS", "CACHE_PRESET"),
        ("WARM_UP", "WARMUP"),
        ("WARMUP_SIZE", "WARMUP_SIZES"),
        ("PERFORMANCE", "PERFORMANCE_MODE"),
        ("SECONDARY_CACHE_SMC", "SECONDARY_CACHE_SCM"),
        ("DTYPES", "DTYPE"),
    ],
)
def test_a_slip_in_the_environment_is_reported_unless_it_is_a_known_setting(name: str, meant: str) -> None:
    variable = f"RENDERQ_{name}"
    assert problems(env={variable: "x"})[variable].nearest == f"RENDERQ_{meant}"
    resolve(FLUX, flags={}, env={variable: "x"}, hardware=gpu(), other_settings={variable})


def test_an_empty_variable_was_not_set() -> None:
    policy = resolved(SCHNELL, env={"RENDERQ_CACHE": "", "RENDERQ_CACHE_FN": ""})
    assert policy.options["cache"].source == "model"


def test_the_rest_of_the_environment_is_not_looked_at() -> None:
    assert not problems(env={"COMPILE": "nonsense", "PATH": "/bin", "renderq_compile": "nonsense"})


@pytest.mark.parametrize(
    ("spec", "hardware", "value"),
    [
        (FLUX, gpu(), "bfloat16"),
        (FLUX, gpu(bf16=False), "float32"),
        (FLUX, CPU, "float32"),
        (CATALOGUE["pixart-sigma"], gpu(), "float16"),
        (CATALOGUE["pixart-sigma"], CPU, "float32"),
        (TINY, gpu(), "float32"),
    ],
)
def test_the_number_format_is_the_checkpoints_where_the_hardware_has_it(
    spec: object, hardware: Hardware, value: str
) -> None:
    item = resolved(spec, hardware=hardware).options["dtype"]  # type: ignore[arg-type]
    assert item.value == value
    assert item.reason.startswith("auto: ")


def test_an_explicit_number_format_stays_and_an_explicit_auto_keeps_its_source() -> None:
    assert resolved(TINY, {"dtype": "bfloat16"}, hardware=CPU)["dtype"] == "bfloat16"
    item = resolved(FLUX, {"dtype": "auto"}).options["dtype"]
    assert (item.value, item.source) == ("bfloat16", "flag")


def test_warm_up_sizes_default_to_the_models_own() -> None:
    assert resolved(TINY, hardware=CPU)["warmup_sizes"] == ("64x64",)
    assert resolved(WAN2)["warmup_sizes"] == ("1280x720",)


def test_what_has_no_effect_as_things_are_is_said_and_is_no_error() -> None:
    flags = {"compile_scope": "whole", "compile_mode": "max-autotune", "new_shape": "compile"}
    policy = resolved(flags=flags)
    for name, value in flags.items():
        assert policy[name] == value
        assert policy.options[name].reason.endswith("no effect while compile is off")
    on = resolved(flags={**flags, "compile": True, "compile_mode": "default"})
    assert not on.options["compile_scope"].reason.endswith("off")
    kept = resolved(flags={"keep_resident": "vae"}).options["keep_resident"]
    assert kept.value == ("vae",)
    assert kept.reason.endswith("no effect while nothing is offloaded")


def test_a_policy_survives_json() -> None:
    for spec, hardware in ((TINY, CPU), (WAN2, gpu(40)), (SCHNELL, gpu(24))):
        policy = resolved(spec, {"warmup_sizes": ""}, hardware=hardware)
        assert Policy.from_json(json.loads(json.dumps(policy.as_json()))) == policy


def test_a_policy_of_another_version_is_refused() -> None:
    body = resolved().as_json()
    body["options"].pop("cache")
    with pytest.raises(ValueError, match="another version"):
        Policy.from_json(body)
    body = resolved().as_json()
    body["options"]["cache"]["source"] = "rumour"
    with pytest.raises(ValueError, match="rumour"):
        Policy.from_json(body)


def test_a_policy_explains_itself_row_by_row() -> None:
    table = {name: (value, source) for name, value, source, _ in rows(resolved(TINY, hardware=CPU))}
    assert list(table) == list(OPTIONS)
    assert table["compile"] == ("false", "default")
    assert table["warmup_sizes"] == ("64x64", "default")
    assert table["keep_resident"] == ("-", "default")
    assert table["secondary_cache_fn"] == ("-", "default")
