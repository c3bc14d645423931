"""Over how many GPUs one job is spread, and in which ways: the degrees, and what each family allows.

    cfg_parallel      the two predictions of guidance, one on each of two groups of GPUs
    context_parallel  the tokens of one picture, in parts; inside attention exchanged for heads (Ulysses)
    fsdp              the weights, in equal parts; a block is gathered while it is computed (FSDP2)

A worker runs one process per GPU, its ranks: `cfg_parallel * context_parallel` of them share the work, and
`fsdp` is 1 or all of them. With `fsdp` alone every rank computes the same picture from a part of the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policy.model_spec import ModelSpec
from policy.resolved import Policy

BRANCHES = 2
"""Predictions of one guided step."""

MOST_RANKS = 8
"""GPUs of one machine, which the ranks do not leave."""

NAMES = ("cfg_parallel", "context_parallel", "fsdp")

# Why the tokens of a family cannot be split; neither Cache-DiT 1.5 nor diffusers 0.42 has a plan for it.
_UNSPLIT: Mapping[str, str] = MappingProxyType(
    {
        "sana": "its linear attention and its convolutions need all tokens in one place",
        "sd3": "no plan says where its tokens may be split",
    }
)
# Tokens of the shortest text of a family whose pipeline does not pad it: what the template of Qwen-Image
# leaves of an empty (negative) prompt is "<|im_end|>", newline, "<|im_start|>", "assistant", newline.
_SHORTEST_TEXT: Mapping[str, int] = MappingProxyType({"qwen-image": 5})
_STYLES = ("batched", "separate")


@dataclass(frozen=True, slots=True)
class Degrees:
    """How one worker spreads a job; 1 each: it does not."""

    cfg_parallel: int = 1
    context_parallel: int = 1
    fsdp: int = 1

    @classmethod
    def from_policy(cls, policy: Policy) -> "Degrees":
        """Returns the degrees of a worker with these options."""
        return cls(*(int(policy[name]) for name in NAMES))

    @property
    def sharing(self) -> int:
        """Ranks that share the work of a step."""
        return self.cfg_parallel * self.context_parallel

    @property
    def world(self) -> int:
        """Ranks of the worker, so many GPUs it occupies."""
        return max(self.sharing, self.fsdp)

    def as_json(self) -> dict[str, int]:
        """Returns the degrees by their options' names."""
        return {name: getattr(self, name) for name in NAMES}


def unsplit_context(spec: ModelSpec) -> str | None:
    """Returns why the tokens of this model cannot be split, None where they can."""
    return _UNSPLIT.get(spec.family)


def most_parts(spec: ModelSpec) -> int:
    """Returns over how many ranks the tokens can be split: each needs one of the shortest text's."""
    return min(_SHORTEST_TEXT.get(spec.family, MOST_RANKS), MOST_RANKS)


def has_branches(spec: ModelSpec) -> bool:
    """Tells whether this model's guidance is a second prediction, which another GPU could make."""
    return spec.guidance.style in _STYLES


def guides_by_default(spec: ModelSpec) -> bool:
    """Tells whether a request that says nothing about guidance has both predictions made."""
    return has_branches(spec) and spec.guidance.steers(spec.guidance.default)
