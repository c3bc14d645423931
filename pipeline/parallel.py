"""The ranks of one worker: a process group on this machine, and who shares what with whom in it.

Rank 0 leads and is the worker's own child; the others follow (`pipeline.team`). All run the same code on the
same plan with the same seeds, so whatever is not split is computed alike on each. They meet at a port of the
loopback interface, and talk over it or, between GPUs, as NCCL finds best.
"""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from policy.parallel import Degrees

LOOPBACK = "127.0.0.1"
#: An exchange that takes longer has lost a rank that nobody saw die.
TIMEOUT_S = 1800.0
#: Ranks that are all there have met by then.
MEET_S = 120.0
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among its worker's ranks.

    Attributes:
        rank: Its number; 0 leads.
        degrees: How the work is spread.
        device: What it computes on.
        mesh: Ranks that share the work, dimensions `cfg`, `ring`, `ulysses`; None: each does all of it.
        shards: Ranks that share the weights, dimension `fsdp`; None: each has all of them.
    """

    rank: int
    degrees: Degrees
    device: torch.device
    mesh: DeviceMesh | None
    shards: DeviceMesh | None

    @property
    def leads(self) -> bool:
        """Whether this is the rank that the worker talks to."""
        return self.rank == 0

    @property
    def branch(self) -> int:
        """Which prediction of a guided step is this rank's: 0 the first, 1 the second."""
        return 0 if self.mesh is None else self.mesh["cfg"].get_local_rank()

    @property
    def branches(self) -> dist.ProcessGroup:
        """The ranks that make the other predictions from the same tokens."""
        if self.mesh is None:
            raise ValueError("these ranks share no work")
        return self.mesh["cfg"].get_group()


def offer_store(world: int) -> TCPStore:
    """Returns the leader's end of where the ranks meet: a free port of the loopback interface."""
    # Left to itself the store would listen on every interface, and it asks nobody who they are.
    listening = socket.create_server((LOOPBACK, 0))
    return TCPStore(
        LOOPBACK,
        listening.getsockname()[1],
        world,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=MEET_S),
        master_listen_fd=listening.detach(),
    )


def find_store(port: int, world: int) -> TCPStore:
    """Returns a follower's end of it."""
    return TCPStore(LOOPBACK, port, world, is_master=False, timeout=timedelta(seconds=MEET_S))


def join(store: Store, rank: int, degrees: Degrees, device: torch.device) -> Ranks:
    """Joins the group; returns when all ranks have.

    Args:
        store: Where they meet.
        rank: This process.
        degrees: The same on all.
        device: The worker's device on rank 0; rank N takes the one N further on.
    """
    for name in _INTERFACES:
        os.environ.setdefault(name, "lo")  # no rank is on another machine, and nobody else is to reach them
    own = device_of(device, rank)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    # What is small and asked for by the host goes over gloo, beside the GPUs' work and not into it.
    backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=degrees.world,
        timeout=timedelta(seconds=TIMEOUT_S),
        device_id=own if own.type == "cuda" else None,
    )
    return Ranks(rank, degrees, own, _mesh(degrees, own), _shards(degrees, own))


def leave() -> None:
    """Leaves the group without waiting for the others, who may be gone."""
    if dist.is_initialized():
        dist.destroy_process_group()


def device_of(device: torch.device, rank: int) -> torch.device:
    """Returns a rank's device, counted among those that CUDA_VISIBLE_DEVICES shows."""
    return torch.device(device.type, (device.index or 0) + rank) if device.type == "cuda" else device


def _mesh(degrees: Degrees, device: torch.device) -> DeviceMesh | None:
    if degrees.sharing == 1:
        return None
    shape = (degrees.cfg_parallel, 1, degrees.context_parallel)
    return init_device_mesh(device.type, shape, mesh_dim_names=("cfg", "ring", "ulysses"))


def _shards(degrees: Degrees, device: torch.device) -> DeviceMesh | None:
    if degrees.fsdp == 1:
        return None
    return init_device_mesh(device.type, (degrees.fsdp,), mesh_dim_names=("fsdp",))
