"""What a decision about the cache is in Cache-DiT's terms, and what Cache-DiT tells of a module.

Nothing is mounted here: `pipeline.acceleration` alone does that.
"""

from collections.abc import Sequence
from typing import Any

import cache_dit
from diffusers import DiffusionPipeline
from torch import nn

from policy.cache import CacheConfig

# Without a mask Cache-DiT decides while running and wants no limit on the number of reused steps but ours.
_UNLIMITED = -1


def block_adapter(modules: Sequence[nn.Module], configs: Sequence[CacheConfig], pipeline: Any) -> Any:  # noqa: ANN401
    """One adapter of all transformers, each with its own step count, mask and knobs.

    Args:
        modules: The transformers.
        configs: How each is cached.
        pipeline: Where they come from: asked for how its transformer is built, when that is not known by the
            transformer's own class.

    Raises:
        ValueError: Cache-DiT does not know a transformer, or it has fewer blocks than are to be computed.
    """
    adapters = [_adapter(module, pipeline) for module in modules]
    for adapter, config in zip(adapters, configs, strict=True):
        _check_fits(adapter, config)
    return _join(modules, adapters, configs)


def contexts_of(module: nn.Module) -> list[Any]:
    """The live contexts, one per list of blocks. Cache-DiT's own summary is stale after an aborted pass."""
    manager: Any = module._context_manager  # noqa: SLF001
    names: Any = module._context_names  # noqa: SLF001
    return [manager.get_context(name) for name in names]


def mounted_values(module: nn.Module) -> dict[str, object] | None:
    """What is mounted on this transformer, read from its context; None: nothing."""
    if not getattr(module, "_is_cached", False):
        return None
    context = contexts_of(module)[-1]
    config, calibrator = context.cache_config, context.calibrator_config
    mask = config.steps_computation_mask
    return {
        "steps": config.num_inference_steps,
        "mask": None if mask is None else tuple(mask),
        "fn": config.Fn_compute_blocks,
        "bn": config.Bn_compute_blocks,
        "warmup_steps": config.max_warmup_steps,
        "threshold": config.residual_diff_threshold,
        "taylorseer": calibrator.taylorseer_order if calibrator is not None else 0,
        "separate_cfg": config.enable_separate_cfg,
    }


def listed(value: Any) -> list[Any]:  # noqa: ANN401
    """Cache-DiT takes one list of blocks as it is, and several as a list of them."""
    return list(value) if isinstance(value, list | tuple) else [value]


def fewest_blocks(module: nn.Module, pipeline: Any) -> int | None:  # noqa: ANN401
    """The fewest blocks of a transformer that the cache sees in a row; None: Cache-DiT does not know it."""
    # Without what follows on the making of an adapter: some transformers get another forward then.
    adapter = _find(module, pipeline, skip_post_init=True)
    return None if adapter is None else _fewest(adapter)


def _adapter(module: nn.Module, pipeline: Any) -> Any:  # noqa: ANN401 (Cache-DiT publishes no types)
    adapter = _find(module, pipeline)
    if adapter is None:
        raise ValueError(f"{type(module).__name__} is not among the transformers it knows")
    return adapter


def _find(module: nn.Module, pipeline: Any, **settings: bool) -> Any:  # noqa: ANN401
    """Where the blocks of a transformer are, by its class or, where that is not listed, its pipeline's."""
    adapter = cache_dit.BlockAdapterRegister.get_adapter(module, **settings)
    if adapter is None and isinstance(pipeline, DiffusionPipeline):
        adapter = cache_dit.BlockAdapterRegister.get_adapter(pipeline, **settings)
    return adapter if adapter is not None and adapter.transformer is module else None


def _fewest(adapter: Any) -> int:  # noqa: ANN401
    return min(len(blocks) for blocks in listed(adapter.blocks))


def _check_fits(adapter: Any, config: CacheConfig) -> None:  # noqa: ANN401
    fewest = _fewest(adapter)
    if config.fn + config.bn > fewest:
        raise ValueError(
            f"cache_fn {config.fn} and cache_bn {config.bn} are more than the {fewest} blocks there are"
        )


def _join(modules: Sequence[nn.Module], adapters: Sequence[Any], configs: Sequence[CacheConfig]) -> Any:  # noqa: ANN401
    return cache_dit.BlockAdapter(
        transformer=list(modules),
        blocks=[listed(adapter.blocks) for adapter in adapters],
        blocks_name=[listed(adapter.blocks_name) for adapter in adapters],
        forward_pattern=[listed(adapter.forward_pattern) for adapter in adapters],
        dummy_blocks_names=[list(adapter.dummy_blocks_names) for adapter in adapters],
        check_forward_pattern=adapters[0].check_forward_pattern,
        params_modifiers=[
            [_modifier(config, blocks) for blocks in listed(adapter.blocks)]
            for adapter, config in zip(adapters, configs, strict=True)
        ],
    )


def _modifier(config: CacheConfig, blocks: nn.ModuleList) -> Any:  # noqa: ANN401
    return cache_dit.ParamsModifier(
        cache_config=_cache_config(config), calibrator_config=_calibrator(config, blocks)
    )


def _cache_config(config: CacheConfig) -> Any:  # noqa: ANN401
    return cache_dit.DBCacheConfig(
        Fn_compute_blocks=config.fn,
        Bn_compute_blocks=config.bn,
        max_warmup_steps=config.warmup_steps,
        residual_diff_threshold=config.threshold,
        max_continuous_cached_steps=config.max_consecutive if config.mask is None else _UNLIMITED,
        max_cached_steps=_UNLIMITED,
        num_inference_steps=config.steps,
        steps_computation_mask=None if config.mask is None else list(config.mask),
        steps_computation_policy="dynamic" if config.mask is None else "static",
        enable_separate_cfg=config.separate_cfg,
    )


def _calibrator(config: CacheConfig, blocks: nn.ModuleList) -> Any:  # noqa: ANN401
    if config.taylorseer == 0:
        return None
    # A last block that drops the text (SD3) leaves nothing of it to predict; Cache-DiT fails looking for it.
    drops_text = bool(getattr(blocks[-1], "context_pre_only", False))
    return cache_dit.TaylorSeerCalibratorConfig(
        taylorseer_order=config.taylorseer, enable_encoder_calibrator=not drops_text
    )
