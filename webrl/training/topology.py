"""The job's nodes, processes and meeting point, from whichever launcher's variables are set; and in it, the rank of
this process and collectives, which are no-ops in a single-process job.

Order: plain `NNODES …`, then `MLP_*`, then Kubernetes PyTorchJob (`PET_*`, or `WORLD_SIZE`/`RANK` per pod), then Slurm,
else this machine alone. No interface name and no NCCL option is set: what the site exports is passed on.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from webrl.config import RunConfig
from webrl.config.resources import load_plan
from webrl.errors import UsageError
from webrl.runs.machine import visible_gpus

DEFAULT_PORT = 29500


class _Launcher(NamedTuple):
    """The variables of one way to start a job; it is recognized by one of the sets in `marks`, all set."""

    source: str
    marks: tuple[tuple[str, ...], ...]
    nodes: str
    rank: str
    addr: str
    port: str
    processes: str


_LAUNCHERS = (
    _Launcher(
        "NNODES", (("NNODES",), ("NPROC_PER_NODE",)),
        "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE",
    ),
    _Launcher(
        "MLP_*", (("MLP_WORKER_NUM",),),
        "MLP_WORKER_NUM", "MLP_ROLE_INDEX", "MLP_WORKER_0_HOST", "MLP_WORKER_0_PORT", "MLP_WORKER_GPU",
    ),
    _Launcher(
        "PyTorchJob", (("PET_NNODES",),),
        "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NPROC_PER_NODE",
    ),
    _Launcher(  # the training operator sets these for each pod
        "PyTorchJob", (("WORLD_SIZE", "MASTER_ADDR"),),
        "WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "NPROC_PER_NODE",
    ),
    _Launcher(
        "Slurm", (("SLURM_JOB_ID", "SLURM_NNODES"), ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES")),
        "SLURM_NNODES", "SLURM_NODEID", "SLURM_JOB_NODELIST", "MASTER_PORT", "SLURM_GPUS_ON_NODE",
    ),
)  # fmt: skip
"""In the order in which they are looked for."""


@dataclass(frozen=True)
class Topology:
    """A job's shape, as seen from one node.

    Example: `Topology(min_nodes=2, max_nodes=2, node_rank=0, master_addr="10.0.0.1", master_port=29500,
    processes_per_node=8, source="Slurm")`
    """

    min_nodes: int
    """Fewest nodes to train with; below `max_nodes` the job is elastic (`NNODES=2:4`)."""
    max_nodes: int
    """Nodes of the job."""
    node_rank: int
    """Number of this node; node 0 hosts the meeting point."""
    master_addr: str
    """Address of node 0."""
    master_port: int
    """Port of the meeting point."""
    processes_per_node: int
    """One per GPU; one on a machine without."""
    source: str
    """Whose variables decided."""


def read_topology(environment: Mapping[str, str], num_gpus: int) -> Topology:
    """The job's shape.

    Args:
        num_gpus: GPUs of this node; decides the processes where no variable does.

    Raises:
        UsageError: a value that is not a number, a rank outside the job, or several nodes without an address.
    """
    env = {name: value for name, value in environment.items() if value != ""}
    way = next((way for way in _LAUNCHERS if any(all(name in env for name in names) for names in way.marks)), None)
    if way is None:
        if env.get("NODE_RANK", "0") != "0":  # each node would train alone, in one run folder
            raise UsageError(f"NODE_RANK={env['NODE_RANK']!r}, but NNODES is not set; set it to the number of nodes")
        return Topology(1, 1, 0, "127.0.0.1", DEFAULT_PORT, max(num_gpus, 1), "this machine")
    if way.source == "Slurm":  # one name for each variable, the node list's first host, and a port of the job's own
        nodelist = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
        addr = env.get("MASTER_ADDR") or (nodelist and first_host(nodelist))
        job = read_number(re.sub(r"(?<=\d)\D.*", "", env["SLURM_JOB_ID"]), "SLURM_JOB_ID")
        given = {"SLURM_NNODES": env.get("SLURM_JOB_NUM_NODES"), "MASTER_PORT": str(20000 + job % 20000)}
        env = {name: value for name, value in (given | env | {"SLURM_JOB_NODELIST": addr}).items() if value}
    low, _, high = env.get(way.nodes, "1").partition(":")
    count = env.get(way.processes, "auto")
    topology = Topology(
        min_nodes=read_number(low, way.nodes),
        max_nodes=read_number(high or low, way.nodes),
        node_rank=read_number(env.get(way.rank, "0"), way.rank),
        master_addr=env.get(way.addr, "127.0.0.1"),
        master_port=read_number(env.get(way.port, str(DEFAULT_PORT)), way.port),
        processes_per_node=max(num_gpus, 1) if count in ("auto", "gpu", "cpu") else read_number(count, way.processes),
        source=way.source,
    )
    nodes = f"{topology.min_nodes}:{topology.max_nodes} nodes"
    problem = ""
    if not 1 <= topology.min_nodes <= topology.max_nodes or topology.processes_per_node < 1:
        shape = f"{nodes} x {topology.processes_per_node} processes"
        problem = f"{shape} make no job; at least 1 of each is needed, the smaller number first"
    elif not 0 < topology.master_port <= 65535:
        problem = f"port {topology.master_port} is not one of 1 to 65535 (MASTER_PORT)"
    elif not 0 <= topology.node_rank < topology.max_nodes:
        outside = f"node rank {topology.node_rank} is outside a job of {topology.max_nodes} nodes"
        problem = f"{outside}; they count from 0"
    elif topology.max_nodes > 1 and way.addr not in env:
        problem = f"{topology.max_nodes} nodes, but {way.addr} is not set; set it to node 0's address"
    if problem:
        raise UsageError(f"{topology.source}: {problem}")
    return topology


def local_processes(config: RunConfig) -> int:
    """Processes by which the train stage runs on this machine; 1 in a job that a launcher started.

    One, unless `NPROC_PER_NODE` says otherwise or an engine shards the models, which takes one per GPU. UsageError as
    `read_topology`, for an unknown engine, and for more processes than GPUs.
    """
    shards = any(load_plan(update.engine).kind == "fsdp2" for update in (config.actor, config.critic))
    if "WORLD_SIZE" in os.environ or not (shards or os.environ.get("NPROC_PER_NODE")):
        return 1
    gpus = 0 if config.models.device == "cpu" else len(visible_gpus())
    processes = read_topology(os.environ, gpus).processes_per_node
    if processes > gpus > 0:
        raise UsageError(f"{processes} training processes, but {gpus} GPU(s): set NPROC_PER_NODE={gpus}, or auto")
    return processes


def first_host(nodelist: str) -> str:
    """First host of a Slurm node list: `gpu[03-07,12],login1` -> `gpu03`; UsageError for anything else."""
    match = re.match(r"([^,\[\]]+)(?:\[([^\]]+)\])?([^,\[\]]*)", nodelist)
    if not match:
        raise UsageError(f"SLURM_JOB_NODELIST={nodelist!r} is not a node list")
    prefix, ranges, suffix = match.groups()
    return prefix + (re.split(r"[,-]", ranges)[0] if ranges else "") + suffix


def read_number(text: str, name: str) -> int:
    """Parse a variable's number; UsageError for anything else."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a number") from None


def join(device: str) -> None:
    """Join the process group that a launcher set up in the environment (RANK, WORLD_SIZE, MASTER_ADDR, …).

    On GPUs, NCCL handles tensors on the device and gloo those on the CPU (gathered scores).
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    from accelerate import PartialState

    if device == "cpu":
        PartialState(cpu=True, backend="gloo")
    else:
        PartialState(backend="cuda:nccl,cpu:gloo")


def leave() -> None:
    """Close the process group.

    Dropping its last reference holds the GIL while it waits for gloo's threads to end (torch 2.13); a thread
    that still has to release a tensor waits for the GIL. So these threads get time first.
    """
    import torch

    if torch.distributed.is_initialized():
        time.sleep(0.1)
        torch.distributed.destroy_process_group()


def world() -> tuple[int, int]:
    """Return (number of processes, rank of this one)."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0


def is_main() -> bool:
    """True on the process that writes files."""
    return world()[1] == 0


def barrier() -> None:
    """Wait for all processes."""
    import torch

    if world()[0] > 1:
        torch.distributed.barrier()


def gather(item: Any) -> list[Any]:
    """One picklable object of each process, in rank order, on every process."""
    import torch

    if world()[0] == 1:
        return [item]
    items: list[Any] = [None] * world()[0]
    torch.distributed.all_gather_object(items, item)
    return items


def broadcast(value: Any) -> Any:
    """The main process's value, on every process."""
    import torch

    if world()[0] == 1:
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
