"""Resolves the options of a worker: flag > environment > model config > performance mode > default.

A source counts when the option is present in it, also when the value equals the default. Unknown names, bad
values and conflicts are raised together, before anything is loaded.
"""

from collections.abc import Collection, Iterator, Mapping

from policy.conflicts import Setting, find_conflicts
from policy.errors import FieldError, InvalidOptions
from policy.given import Collected, Given, collect
from policy.kernels import splits
from policy.knobs import fill_knobs
from policy.model_spec import ModelSpec, size_text
from policy.modes import Hardware, choose_dtype, choose_placement
from policy.options import OPTIONS, Option
from policy.parallel import NAMES
from policy.platforms import PLATFORMS
from policy.resolved import Policy, Resolved, Source
from policy.sharing import choose_sharing
from policy.weights import loaded

__all__ = ["Policy", "Resolved", "Source", "resolve"]

_COMPILE_DETAILS = ("compile_scope", "compile_mode", "compile_dynamic", "compile_cache", "new_shape")
_PLACEMENT = ("offload", "keep_resident", "vae_tiling")


def resolve(
    spec: ModelSpec,
    *,
    flags: Mapping[str, object],
    env: Mapping[str, str],
    hardware: Hardware,
    other_settings: Collection[str] = (),
) -> Policy:
    """Returns the options in effect for a worker of this model on this hardware.

    Args:
        spec: The model; its `policy` is the model config.
        flags: Option name -> value or text; a flag whose value is None was not given.
        env: The environment; `RENDERQ_` names that are near an option and are none are reported.
        hardware: The device.
        other_settings: Environment variables that are known and are not options.

    Raises:
        InvalidOptions: With every unknown option, bad value and conflict.
    """
    collected = collect(spec.policy, env, flags, other_settings)
    given = {name: _as_resolved(item) for name, item in collected.given.items()}
    options = _fill(given, spec, hardware)
    errors = [*collected.errors, *_conflicts(options, collected, spec, hardware)]
    if errors:
        raise InvalidOptions(errors)
    return Policy(spec.id, options)


def _as_resolved(item: Given) -> Resolved:
    wording = f"set in {item.wording}" if item.source == "model" else f"given as {item.wording}"
    return Resolved(item.value, item.source, wording)


def _conflicts(
    options: Mapping[str, Resolved], collected: Collected, spec: ModelSpec, hardware: Hardware
) -> list[FieldError]:
    """A conflict with a value that could not be read would be about a value that nobody chose."""
    values = {name: resolved.value for name, resolved in options.items()}
    explicit = {name for name, item in collected.given.items() if item.source != "model"}
    found = find_conflicts(Setting(spec, hardware, values, explicit))
    return [conflict.error for conflict in found if not conflict.names & collected.unreadable]


def _fill(given: Mapping[str, Resolved], spec: ModelSpec, hardware: Hardware) -> dict[str, Resolved]:
    options = {
        name: Resolved(option.default, "default", "the default: nothing sets it")
        for name, option in OPTIONS.items()
    }
    options |= given
    options["performance_mode"] = _mode(options["performance_mode"], hardware)
    mode = str(options["performance_mode"].value)
    options["compile"] = _opt_in("compile", given, hardware, mode)
    options["capture"] = _opt_in("capture", given, hardware, mode)
    options |= dict(_of_platform(given, hardware))
    options["dtype"] = _dtype(options["dtype"], spec, hardware)
    options |= fill_knobs(given, len(spec.transformers), fitted=spec.curve is not None)
    options |= _share(options, given, spec, hardware)
    options |= _place(options, given, spec, hardware)
    if "warmup_sizes" not in given:
        size = (size_text(spec.size.default),)
        options["warmup_sizes"] = Resolved(size, "default", "the model's default size")
    return options | dict(_without_effect(options, given))


def _mode(mode: Resolved, hardware: Hardware) -> Resolved:
    if hardware.device != "cpu":
        return mode
    return Resolved(mode.value, mode.source, f"{mode.reason}; on a CPU it changes nothing")


def _opt_in(name: str, given: Mapping[str, Resolved], hardware: Hardware, mode: str) -> Resolved:
    """Compile or capture. Explicit, either way, in every mode > the model's opt-in, in speed mode > off."""
    chosen = given.get(name)
    option, platform = OPTIONS[name], PLATFORMS[hardware.platform]
    if chosen is not None and chosen.source != "model":
        return Resolved(
            chosen.value, chosen.source, f"{chosen.reason}; an explicit value counts in every mode"
        )
    if name == "capture" and not platform.records_graphs:
        return Resolved(False, "default", f"not available: {platform.words} records no CUDA graphs")
    return _of_model(option, chosen, hardware, mode)


def _of_model(option: Option, chosen: Resolved | None, hardware: Hardware, mode: str) -> Resolved:
    how = f"opt in with {option.flag} or {option.env}=true"
    if chosen is None:
        return Resolved(False, "default", f"off by default, also in speed mode; {how}")
    if not chosen.value:
        return Resolved(False, "model", f"the model's file keeps it off; {how}")
    if hardware.device == "cpu":
        return Resolved(False, "default", f"the model opts in, which counts on a GPU only; {how}")
    if mode != "speed":
        hint = f"opt in with --performance-mode speed or {option.flag}"
        return Resolved(False, "default", f"the model opts in, which counts in speed mode only; {hint}")
    hint = f"opt out with {option.negative_flag} or {option.env}=false"
    return Resolved(True, "model", f"speed mode, and the model's file opts in; {hint}")


def _of_platform(given: Mapping[str, Resolved], hardware: Hardware) -> Iterator[tuple[str, Resolved]]:
    """What the platform settles, or does not have at all."""
    platform = PLATFORMS[hardware.platform]
    if platform.fixed_shapes and "compile_dynamic" not in given:
        yield (
            "compile_dynamic",
            Resolved(False, "default", f"{platform.words} compiles each shape for itself"),
        )
    if hardware.device == "cpu" and "attention_backend" not in given:
        reason = "torch's own attention; the other kernels are not available: a CPU has none of them"
        yield "attention_backend", Resolved("auto", "default", reason)


def _dtype(dtype: Resolved, spec: ModelSpec, hardware: Hardware) -> Resolved:
    if dtype.value != "auto":
        return dtype
    value, reason = choose_dtype(spec, hardware)
    return Resolved(value, dtype.source, reason)


def _share(
    options: Mapping[str, Resolved], given: Mapping[str, Resolved], spec: ModelSpec, hardware: Hardware
) -> dict[str, Resolved]:
    """Over how many GPUs the weights are shared where one is too small; what needs one GPU keeps to one."""
    if _needs_one_gpu(options) or ("offload" in given and options["offload"].value == "none"):
        return {}
    presets = (options["cache_preset"].value, options["secondary_cache_preset"].value)
    set_degrees = {name: given[name].value for name in NAMES if name in given}
    sharing = choose_sharing(
        str(options["performance_mode"].value),
        spec,
        hardware,
        loaded(spec, str(options["dtype"].value)),
        {name: value for name, value in set_degrees.items() if isinstance(value, int)},
        adaptive=bool(options["cache"].value) and "adaptive" in presets,
        splits=splits(str(options["attention_backend"].value)),
    )
    if sharing is None:
        return {}
    derived = sharing.degrees.as_json().items()
    return {name: Resolved(value, "mode", sharing.reason) for name, value in derived if name not in given}


def _needs_one_gpu(options: Mapping[str, Resolved]) -> bool:
    """Whether something is on that weights cannot be shared under; none of it is on by itself."""
    values = {name: option.value for name, option in options.items()}
    only_one = values["compile"] or values["capture"] or values["microbatch"] != 1
    return bool(only_one or values["quantize"] != "none" or values["offload"] not in ("auto", "none"))


def _place(
    options: Mapping[str, Resolved], given: Mapping[str, Resolved], spec: ModelSpec, hardware: Hardware
) -> dict[str, Resolved]:
    """Explicit placement protects the one option that it names; the others are derived around it."""
    offload = options["offload"].value
    placement = choose_placement(
        str(options["performance_mode"].value),
        spec,
        hardware,
        str(options["dtype"].value),
        None if offload == "auto" else str(offload),
        quantize=str(options["quantize"].value),
        quantize_text=bool(options["quantize_text"].value),
        fsdp=value if isinstance(value := options["fsdp"].value, int) else 1,
    )
    source: Source = "mode" if placement.derived else "default"
    settled = {name for name in _PLACEMENT if name in given and given[name].value != "auto"}
    return {
        name: Resolved(
            getattr(placement, name), given[name].source if name in given else source, placement.reason
        )
        for name in _PLACEMENT
        if name not in settled
    }


def _without_effect(
    options: Mapping[str, Resolved], given: Mapping[str, Resolved]
) -> Iterator[tuple[str, Resolved]]:
    """Says of what was given that it changes nothing as things are; it is not wrong, so it is no error."""
    idle: dict[str, str] = {}
    if not options["compile"].value:
        idle = dict.fromkeys(_COMPILE_DETAILS, "no effect while compile is off")
    if options["offload"].value == "none":
        idle["keep_resident"] = "no effect while nothing is offloaded"
    for name in idle.keys() & given.keys():
        item = given[name]
        yield name, Resolved(item.value, item.source, f"{item.reason}; {idle[name]}")
