"""Transformers spread over the ranks of a worker: what is put on them once, and what each pass says of it.

The order on one transformer, from the outside: guidance is split; the tokens are split; Cache-DiT's cache;
the blocks. So the cache of a rank holds what this rank computes. Under a step mask all ranks reuse the same
steps; under a threshold Cache-DiT decides by the mean over all ranks, which is one decision, too.
"""

import weakref
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from pipeline.guidance_split import GuidanceSplit, Style, split_of
from pipeline.parallel import Ranks
from policy.cache import CacheDecision


class Spread:
    """Spreads transformers over ranks."""

    def __init__(self, ranks: Ranks) -> None:
        """Puts nothing on anything yet."""
        self._ranks = ranks
        # Held weakly, as in `Acceleration`: one that is loaded anew is spread anew.
        self._done: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def put_on(self, modules: Sequence[nn.Module]) -> None:
        """Spreads those transformers that are not spread yet; before anything is mounted on them.

        Raises:
            Unsupported: A transformer cannot be split as asked.
        """
        for module in modules:
            if module not in self._done:
                self._put_on(module)
                self._done.add(module)

    def start_pass(self, modules: Sequence[nn.Module], style: Style | None) -> None:
        """Says how the coming pass asks for the predictions of guidance."""
        for module in modules:
            split = split_of(module)
            if split is not None:
                split.start_pass(style)

    def own(self, decision: CacheDecision) -> CacheDecision:
        """Returns the decision as it is for one rank, which makes one of two separate calls only."""
        if decision.configs is None or self._ranks.degrees.cfg_parallel == 1:
            return decision
        configs = tuple(replace(config, separate_cfg=False) for config in decision.configs)
        return replace(decision, configs=configs)

    def _put_on(self, module: nn.Module) -> None:
        degrees = self._ranks.degrees
        if degrees.context_parallel > 1:
            # Only here: what this imports replaces attention functions of diffusers in the whole process.
            from pipeline.context_split import split_context  # noqa: PLC0415

            split_context(module, self._ranks)
        if degrees.cfg_parallel > 1:
            GuidanceSplit(module, self._ranks.branch, self._ranks.branches)
