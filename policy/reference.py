"""The generated parts of the manual's page on policy: options, presets, models, fields of the catalogue.

`python -m policy.reference docs/policy.md` brings the page up to date.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from policy.catalogue import Catalogue
from policy.catalogue_folder import APART
from policy.curve import Fit
from policy.field_rows import FIELDS, field_rows
from policy.lora import LoraSpec
from policy.mask import PRESET_PERCENT, PRESET_RULES, minimum_steps, step_mask
from policy.model_spec import ModelSpec, size_text
from policy.modes import Hardware
from policy.options import OPTIONS, STATIC_PRESETS, Option
from policy.parallel import NAMES
from policy.resolve import resolve
from policy.stated import CARDS_GB, state_cards
from policy.values import text_of
from policy.wording import listing

_SHOWN_STEPS = (8, 12, 20, 24, 28, 40, 50)
_SECTION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def options_table() -> str:
    """Returns one row per option: flags, environment variable, default, values and help."""
    header = ("option", "flag", "environment", "default", "values", "what it does")
    return _table(header, map(_option_row, OPTIONS.values()))


def presets_table() -> str:
    """Returns one row per static preset: its rule, and how many steps it reuses of a job's."""
    header = ("preset", "rule", "fewest steps", *(f"of {steps}" for steps in _SHOWN_STEPS))
    return _table(header, map(_preset_row, STATIC_PRESETS))


def curves_table(specs: Iterable[ModelSpec]) -> str:
    """Returns one row per step count that masks were fitted for, with the point of each preset."""
    rows = (_curve_row(spec.id, fit) for spec in specs if spec.curve for fit in spec.curve.fits)
    return _table(("model", "steps", *STATIC_PRESETS), rows)


def models_table(specs: Iterable[ModelSpec]) -> str:
    """Returns one row per model: what a caller and an operator look at first."""
    header = (
        "model",
        "makes",
        "default size",
        "steps",
        "guidance",
        "draws from",
        "weights",
        "all on the GPU from",
        "cache",
    )
    return _table(header, map(_model_row, specs))


def cards_table(specs: Iterable[ModelSpec], count: int) -> str:
    """Returns one row per model: where its weights are, by itself, on `count` cards of each size."""
    cards = [state_cards(size, count) for size in CARDS_GB]
    rows = ((f"`{spec.id}`", *(_placed(spec, card) for card in cards)) for spec in specs)
    return _table(("model", *(f"{size} GB" for size in CARDS_GB)), rows)


def _placed(spec: ModelSpec, hardware: Hardware) -> str:
    policy = resolve(spec, flags={}, env={}, hardware=hardware)
    degrees = [f"`{name}` {policy[name]}" for name in reversed(NAMES) if policy[name] > 1]
    if degrees:
        return ", ".join(degrees)
    if policy["offload"] == "none":
        return "all on it" if hardware.count == 1 else "all on one"
    kept = listing(policy["keep_resident"], "and")
    return f"`{policy['offload']}`, keeps {kept}" if kept else f"`{policy['offload']}`"


def refresh(page: str, specs: Iterable[ModelSpec]) -> str:
    """Returns the page with its generated sections made anew."""
    offered = tuple(specs)
    sections = {
        "options": options_table(),
        "presets": presets_table(),
        "curves": curves_table(offered),
        "models": models_table(offered),
        "fields": _table(FIELDS, field_rows(ModelSpec, APART)),
        "lora_fields": _table(FIELDS, field_rows(LoraSpec)),
        "cards": cards_table(offered, 1),
        "pairs": cards_table(offered, 2),
    }
    return _SECTION.sub(lambda found: f"{found[1]}\n{sections[found[2]]}\n\n{found[3]}", page)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = tuple(header)
    return "\n".join(map(_line, [names, ["---"] * len(names), *rows]))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _option_row(option: Option) -> tuple[str, ...]:
    flags = " ".join(f"`{flag}`" for flag in (option.flag, option.negative_flag) if flag)
    return f"`{option.name}`", flags, f"`{option.env}`", _default(option), _values(option), option.help


def _default(option: Option) -> str:
    if option.default is None:
        return "follows"
    return f"`{text_of(option.default)}`" if option.default != () else "none"


def _values(option: Option) -> str:
    if option.allowed:
        return ", ".join(f"`{text_of(value)}`" for value in option.allowed)
    kinds = {
        bool: "`true`, `false`",
        int: "integer",
        float: "number",
        str: "text",
        tuple: "comma-separated list",
    }
    if option.minimum is None:
        return kinds[option.type]
    if option.minimum == option.maximum:
        return f"`{option.minimum}`"
    return f"{kinds[option.type]}, {option.minimum} to {option.maximum}"


def _preset_row(preset: str) -> tuple[str, ...]:
    counts = (str(step_mask(preset, steps).count(0)) for steps in _SHOWN_STEPS)
    return f"`{preset}`", f"`{PRESET_RULES[preset]}`", str(minimum_steps(preset)), *counts


def _curve_row(model: str, fit: Fit) -> tuple[str, ...]:
    points = (fit.nearest(PRESET_PERCENT[preset]) for preset in STATIC_PRESETS)
    shown = (f"{point.reused}: {point.check_mean_db:.0f} / {point.check_worst_db:.0f} dB" for point in points)
    return f"`{model}`", str(fit.steps), *shown


def _model_row(spec: ModelSpec) -> Iterator[str]:
    need = spec.residency
    yield f"`{spec.id}`"
    yield "images" if spec.kind == "image" else "videos"
    yield size_text(spec.size.default)
    yield f"{spec.steps.default} ({spec.steps.minimum} to {spec.steps.maximum})"
    yield "no effect" if spec.guidance.style == "none" else f"{spec.guidance.default:g}"
    yield ", ".join(_sources(spec))
    yield f"{need.weights_gb:.3g} GB"
    yield f"{need.weights_gb + need.working_gb:.3g} GB free"
    yield "off" if spec.policy.get("cache") is False else f"from {spec.cache_minimum_steps('balanced')} steps"


def _sources(spec: ModelSpec) -> Iterator[str]:
    yield "text"
    if spec.inputs is not None and spec.inputs.image_to_image:
        yield "a picture"
    if spec.inputs is not None and spec.inputs.inpaint:
        yield "in a mask"


def main(path: Path) -> None:
    """Rewrites the generated sections of the page at `path`."""
    page = path.read_text(encoding="utf-8")
    path.write_text(refresh(page, Catalogue.load().values()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
