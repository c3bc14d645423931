"""Records what a transformer does at one shape as a CUDA graph and replays it: no compiler, one launch.

Called by `pipeline.acceleration` alone, which says when to record: during the warm-up, once for each shape
that comes by. A call at any other shape runs as if nothing had been recorded, and so does one whose work
cannot be recorded (it asks the device for a number, or makes a tensor on the host).

A graph reads and writes fixed addresses. So inputs are copied into buffers that it owns, and outputs are
copied out before anything else runs: whoever keeps a result would otherwise see it change. All graphs share
one pool of memory: one replays at a time, and none relies on what another left there.

What the work reads besides its inputs and weights is kept alive with the recording: some transformers keep
tables of positions in a cache of their own, from which the oldest drop out while the graph still reads there.
A tensor on the host is recorded as the number that it held, so a call counts as the same only with that one.

Never together with a cache: the cache decides in Python at each step what to compute, and a graph would
repeat the decision of the step that was recorded. Recording single blocks instead would leave that decision
outside, but copies every block's input and output, which costs about what it saves.
"""

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Call = Callable[..., Any]
Leaves: TypeAlias = list[Any]
Replay = Callable[[], Any]
# Makes a replay of work whose inputs lie in buffers; the result always lies at the same place.
Record = Callable[[Callable[[], Any]], Replay]

# Libraries set themselves up in the first calls (handles, workspaces, autotuning), which cannot be recorded.
_CALLS_BEFORE = 3
# A tensor on the host with more is compared with nothing.
_MOST_NUMBERS = 64
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


def cuda_recorder() -> Record:
    """Returns what records CUDA graphs, all in one pool of memory."""
    pool = torch.cuda.graph_pool_handle()
    return functools.partial(_record, pool)


def _record(pool: Any, work: Callable[[], Any]) -> Replay:  # noqa: ANN401 (torch gives it no type)
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_CALLS_BEFORE):
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # Other threads of the worker (its heartbeat) may do what they like meanwhile.
    with torch.cuda.graph(graph, pool=pool, stream=aside, capture_error_mode="thread_local"):
        output = work()

    def replay() -> Any:  # noqa: ANN401
        graph.replay()
        return output

    return replay


@dataclass(slots=True)
class _Recorded:
    """One shape of one transformer: where its inputs go, how to run it, and what else it reads."""

    buffers: Leaves
    replay: Replay
    kept: list[torch.Tensor]

    def run(self, leaves: Leaves) -> Any:  # noqa: ANN401
        for buffer, leaf in zip(self.buffers, leaves, strict=True):
            if isinstance(buffer, torch.Tensor):
                buffer.copy_(leaf)
        return pytree.tree_map_only(torch.Tensor, torch.clone, self.replay())


@dataclass(slots=True)
class _Installed:
    """What one transformer's own forward is, as a function of the module, and what was recorded of it."""

    own: Call
    shapes: dict[Any, _Recorded | None] = field(default_factory=dict)


class Graphs:
    """The recordings of the transformers of one engine.

    Attributes:
        replayed: Calls since `start_pass` that were replayed.
        plain: Calls since `start_pass` that ran as usual.
        failures: Why a shape could not be recorded, one sentence for each.
    """

    def __init__(self, record: Record | None = None) -> None:
        """Records nothing yet.

        Args:
            record: How to record; None: as CUDA graphs. Tests bring one that needs no GPU.
        """
        self._record = record
        self._recording = False
        self._paused = False
        # Held weakly, as the compiled modules are: a transformer that is loaded anew starts with nothing.
        self._installed: weakref.WeakKeyDictionary[nn.Module, _Installed] = weakref.WeakKeyDictionary()
        self.replayed = self.plain = 0
        self.failures: list[str] = []

    def install(self, modules: Sequence[nn.Module]) -> None:
        """Takes over the forward of the modules, where that was not done yet."""
        for module in modules:
            if module not in self._installed:
                # A bound method would hold the module for as long as there is an entry for it.
                self._installed[module] = _Installed(type(module).forward)
                call = functools.partial(self._call, weakref.ref(module))
                module.forward = functools.update_wrapper(call, module.forward)

    def release(self) -> None:
        """Gives the modules their own forward back and drops every recording."""
        for module in list(self._installed):
            vars(module).pop("forward", None)
        self._installed.clear()

    def start_pass(self) -> None:
        """Counts anew."""
        self.replayed = self.plain = 0

    @property
    def count(self) -> int:
        """How many shapes are recorded, over all modules."""
        shapes = (recorded for one in self._installed.values() for recorded in one.shapes.values())
        return sum(recorded is not None for recorded in shapes)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Lets shapes that come by be recorded."""
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Has everything run as if nothing had been recorded."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _call(self, reference: "weakref.ref[nn.Module]", *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        module = reference()
        assert module is not None  # noqa: S101 (it is being called)
        installed = self._installed[module]
        leaves, tree = pytree.tree_flatten((args, kwargs))
        key = None if self._paused else _key(leaves, tree)
        if key is not None and key not in installed.shapes and self._recording:
            installed.shapes[key] = self._try(installed.own, module, leaves, tree)
        recorded = installed.shapes.get(key)
        if recorded is None:
            self.plain += 1
            return installed.own(module, *args, **kwargs)
        self.replayed += 1
        return recorded.run(leaves)

    def _try(self, own: Call, module: nn.Module, leaves: Leaves, tree: pytree.TreeSpec) -> _Recorded | None:
        buffers = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(buffers, tree)
        try:
            if self._record is None:
                self._record = cuda_recorder()
            work = functools.partial(own, module, *args, **kwargs)
            kept = _find_kept(work, [*module.parameters(), *module.buffers(), *buffers])
            return _Recorded(buffers, self._record(work), kept)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.failures.append(" ".join(str(error).split())[:300])
            return None


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds the tensors that work reads and has not made."""

    def __init__(self, known: Leaves) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {_address(each) for each in known if isinstance(each, torch.Tensor)}
        self.found: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Call, _types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        for tensor in _tensors((args, kwargs)):
            if (address := _address(tensor)) not in self._known:
                self.found[address] = tensor
        result = func(*args, **kwargs or {})
        self._known |= {_address(tensor) for tensor in _tensors(result)}
        return result


def _find_kept(work: Callable[[], Any], known: Leaves) -> list[torch.Tensor]:
    work()  # what it caches is there from now on
    with _Reads(known) as reads:
        work()
    return list(reads.found.values())


def _tensors(values: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _address(tensor: torch.Tensor) -> int:
    """Where its memory is, which what was there before cannot share with what was made since."""
    return tensor.untyped_storage().data_ptr()


def _key(leaves: Leaves, tree: pytree.TreeSpec) -> tuple[Any, ...] | None:
    """What has to be equal for a recording to stand for a call; None: there is no telling."""
    parts: list[Any] = []
    elsewhere = any(tensor.device.type != "cpu" for tensor in _tensors(leaves))
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            parts.append((tuple(leaf.shape), leaf.dtype, leaf.device))
            if leaf.device.type == "cpu" and (elsewhere or leaf.dim() == 0):
                if leaf.numel() > _MOST_NUMBERS:
                    return None
                parts.append(tuple(leaf.flatten().tolist()))
        elif isinstance(leaf, _PLAIN):
            parts.append((type(leaf), leaf))
        else:
            return None
    return (str(tree), *parts)
