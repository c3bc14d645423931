"""What torch.compile is told on each platform, and where CUDA graphs can be recorded: one table.

platform   backend    modes                          shapes           graphs
cuda       inductor   all                            as asked         yes
rocm       inductor   all                            as asked         yes (HIP graphs)
npu        npu        none is passed                 fixed            no
mps        inductor   default                        as asked         no
cpu        inductor   those without CUDA graphs      as asked         no
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# torch.compile modes that record CUDA graphs: memory then has to stay where it was recorded.
CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
MODES = ("default", *CUDA_GRAPH_MODES, "max-autotune-no-cudagraphs")


@dataclass(frozen=True, slots=True)
class Platform:
    """How one platform compiles.

    Attributes:
        words: What it is called in a sentence.
        backend: Of torch.compile.
        modes: Values of `compile_mode` that mean something here.
        passes_mode: Whether the mode is passed on; a backend of another maker takes none.
        fixed_shapes: Whether every shape is compiled for itself.
        records_graphs: Whether torch records CUDA graphs here.
        quantises: Whether weights can be kept in eight bits.
    """

    words: str
    backend: str = "inductor"
    modes: tuple[str, ...] = MODES
    passes_mode: bool = True
    fixed_shapes: bool = False
    records_graphs: bool = False
    quantises: bool = False


PLATFORMS: Mapping[str, Platform] = MappingProxyType(
    {
        "cuda": Platform("an NVIDIA GPU", records_graphs=True, quantises=True),
        "rocm": Platform("an AMD GPU", records_graphs=True),
        "npu": Platform("an NPU", "npu", ("default",), passes_mode=False, fixed_shapes=True),
        "mps": Platform("an Apple GPU", modes=("default",)),
        "cpu": Platform("a CPU", modes=("default", "max-autotune-no-cudagraphs"), quantises=True),
    }
)
