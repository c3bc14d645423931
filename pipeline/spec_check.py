"""What a model's file says and only the libraries or the weights can tell: checked while a worker loads.

A slip there would otherwise show in the first job that needs it, long after the worker was ready.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import diffusers

from pipeline.cache_terms import fewest_blocks
from pipeline.errors import LoadFailed
from policy.model_spec import ModelSpec
from policy.wording import closest

_LOADED = "pipeline_class"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# Field, and the arguments that a pipeline for it takes.
_SIBLINGS = {"image_to_image": ("image",), "inpaint": ("image", "mask_image")}


def check_classes(spec: ModelSpec) -> None:
    """Checks the pipelines that the file names, before anything is read.

    Raises:
        LoadFailed: One of them is not to be had, or draws from no picture; all are told, with the nearest.
    """
    problems = [problem for field, name in _classes(spec) if (problem := _class_problem(field, name))]
    _refuse(spec, problems)


def check_loaded(pipe: Any, spec: ModelSpec) -> None:  # noqa: ANN401 (diffusers publishes no types)
    """Checks what the file says of the pipeline that was loaded.

    Raises:
        LoadFailed: It lacks a transformer or a part of a sibling's, or has another number of blocks.
    """
    absent = [name for name in spec.transformers if getattr(pipe, name, None) is None]
    _refuse(spec, [f"transformers: the pipeline has no {name}" for name in absent])
    _refuse(spec, [*_unlike_blocks(pipe, spec), *_missing_parts(pipe, spec)])


def _refuse(spec: ModelSpec, problems: list[str]) -> None:
    if problems:
        raise LoadFailed(f"the model file of {spec.id}: {'; '.join(problems)}")


def _classes(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    yield _LOADED, spec.pipeline_class
    for field in _SIBLINGS:
        name = getattr(spec.inputs, field, None)
        if name is not None:
            yield field, name


def _label(field: str) -> str:
    return field if field == _LOADED else f"inputs.{field}"


def _class_problem(field: str, name: str) -> str | None:
    found = getattr(diffusers, name, None)
    if not (isinstance(found, type) and issubclass(found, diffusers.DiffusionPipeline)):
        nearest = closest(name, [known for known in dir(diffusers) if known.endswith("Pipeline")])
        hint = f"; did you mean {nearest}?" if nearest else ""
        return f"{_label(field)}: diffusers {diffusers.__version__} has no pipeline {name}{hint}"
    taken = inspect.signature(found.__call__).parameters
    absent = [argument for argument in _SIBLINGS.get(field, ()) if argument not in taken]
    return f"{_label(field)}: {name} takes no {' and no '.join(absent)}" if absent else None


def _unlike_blocks(pipe: Any, spec: ModelSpec) -> Iterator[str]:  # noqa: ANN401
    known = [fewest_blocks(getattr(pipe, name), pipe) for name in spec.transformers]
    fewest = min((count for count in known if count is not None), default=None)
    if spec.blocks is not None and fewest is not None and spec.blocks != fewest:
        yield f"blocks must be {fewest}, as many as the cache sees in a row, not {spec.blocks}"


def _missing_parts(pipe: Any, spec: ModelSpec) -> Iterator[str]:  # noqa: ANN401
    """What a sibling is made of and the loaded pipeline does not have (`pipeline.siblings`)."""
    given = {*pipe.components, *pipe.config}
    for field, name in _classes(spec):
        wanted = inspect.signature(getattr(diffusers, name)).parameters.values()
        needed = [part.name for part in wanted if part.default is part.empty and part.kind in _NAMED]
        absent = [part for part in needed if part not in given]
        if field != _LOADED and absent:
            yield f"{_label(field)}: {name} needs {', '.join(absent)}, not a part of {spec.pipeline_class}"
