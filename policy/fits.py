"""What of a model fits in the free memory of one GPU, by how its weights are moved."""

from dataclasses import dataclass

from policy.model_spec import ModelSpec
from policy.spec_tables import Residency
from policy.weights import loaded, text_encoders


@dataclass(frozen=True, slots=True)
class Need:
    """What has to fit.

    Attributes:
        residency: With the sizes that the weights have once loaded.
        streaming: Components that `offload=group` fetches bit by bit; any other moves as a whole.
        hint: What else could be done where it does not fit; empty, or the end of a sentence.
    """

    residency: Residency
    streaming: tuple[str, ...]
    free_gb: float
    hint: str = ""

    @property
    def all_gb(self) -> float:
        """All weights and the working room."""
        return self.residency.weights_gb + self.residency.working_gb

    @property
    def largest_gb(self) -> float:
        """The largest component and the working room."""
        return self.residency.largest_gb + self.residency.working_gb

    @property
    def streamed_gb(self) -> float | None:
        """What is there at once with `offload=group`; None: not known."""
        if self.residency.streamed_gb is None:
            return None
        whole = [size for name, size in self.residency.component_gb.items() if name not in self.streaming]
        return max(self.residency.streamed_gb, *whole) + self.residency.working_gb

    @property
    def threshold_gb(self) -> float:
        """Free memory from which components stay while others are moved."""
        return self.residency.keep_resident_min_available_gb

    @property
    def everything(self) -> str:
        """All of it against what is free, in words."""
        need, free = apart(self.all_gb, self.free_gb)
        return f"weights and working room need {need} GB and {free} GB are free"

    @property
    def by_offload(self) -> dict[str, float]:
        """GB that each value of `offload` needs, the fastest first; those that are not known are left out."""
        known = {"none": self.all_gb, "model": self.largest_gb}
        return known if self.streamed_gb is None else {**known, "group": self.streamed_gb}

    @property
    def fitting(self) -> tuple[str, ...]:
        """The values of `offload` with which it fits, the fastest first; nothing is smaller than the last."""
        fit = (name for name, size in self.by_offload.items() if size <= self.free_gb)
        return (*fit, "sequential")


def apart(first: float, second: float) -> tuple[str, str]:
    """Returns two sizes with one decimal, or with two where they would look alike."""
    places = 1 if f"{first:.1f}" != f"{second:.1f}" else 2
    return f"{first:.{places}f}", f"{second:.{places}f}"


def need_of(
    spec: ModelSpec, free_gb: float, dtype: str, quantize: str = "none", *, text: bool = False
) -> Need:
    """Returns what a model needs on one GPU; the arguments are those of `policy.weights.loaded`."""
    streaming = (*spec.transformers, *text_encoders(spec))
    return Need(loaded(spec, dtype, quantize, text=text), streaming, free_gb)
