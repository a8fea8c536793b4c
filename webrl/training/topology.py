"""How many nodes and processes, and where they meet: read from whichever launcher's variables are set.

Order: plain `NNODES …`, then `MLP_*`, then Kubernetes PyTorchJob (`PET_*`, or `WORLD_SIZE`/`RANK` per pod), then Slurm,
else this machine alone. No interface name and no NCCL option is set: what the site exports is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from webrl.errors import UsageError

DEFAULT_PORT = 29500


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

    @property
    def is_single_process(self) -> bool:
        """True if nothing needs to be launched."""
        return self.max_nodes == 1 and self.processes_per_node == 1


def read_topology(environment: Mapping[str, str], num_gpus: int) -> Topology:
    """The job's shape.

    Args:
        num_gpus: GPUs of this node; decides the processes where no variable does.

    Raises:
        UsageError: a value that is no number, a rank outside the job, or several nodes without an address.
    """
    env = {name: value for name, value in environment.items() if value != ""}
    default = max(num_gpus, 1)
    if "NNODES" in env or "NPROC_PER_NODE" in env:
        return _build(
            env, "NNODES", nodes="NNODES", rank="NODE_RANK", addr="MASTER_ADDR", port="MASTER_PORT",
            processes="NPROC_PER_NODE", default=default,
        )  # fmt: skip
    if "MLP_WORKER_NUM" in env:
        return _build(
            env, "MLP_*", nodes="MLP_WORKER_NUM", rank="MLP_ROLE_INDEX", addr="MLP_WORKER_0_HOST",
            port="MLP_WORKER_0_PORT", processes="MLP_WORKER_GPU", default=default,
        )  # fmt: skip
    if "PET_NNODES" in env:
        return _build(
            env, "PyTorchJob", nodes="PET_NNODES", rank="PET_NODE_RANK", addr="PET_MASTER_ADDR",
            port="PET_MASTER_PORT", processes="PET_NPROC_PER_NODE", default=default,
        )  # fmt: skip
    if "WORLD_SIZE" in env and "MASTER_ADDR" in env:  # the training operator sets these for each pod
        return _build(
            env, "PyTorchJob", nodes="WORLD_SIZE", rank="RANK", addr="MASTER_ADDR", port="MASTER_PORT",
            processes="NPROC_PER_NODE", default=default,
        )  # fmt: skip
    if "SLURM_JOB_ID" in env and ("SLURM_NNODES" in env or "SLURM_JOB_NUM_NODES" in env):
        nodes = read_number(env.get("SLURM_NNODES") or env["SLURM_JOB_NUM_NODES"], "SLURM_NNODES")
        nodelist = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
        job = read_number(re.sub(r"(?<=\d)\D.*", "", env["SLURM_JOB_ID"]), "SLURM_JOB_ID")
        return _check(
            Topology(
                min_nodes=nodes,
                max_nodes=nodes,
                node_rank=read_number(env.get("SLURM_NODEID", "0"), "SLURM_NODEID"),
                master_addr=env.get("MASTER_ADDR") or (first_host(nodelist) if nodelist else "127.0.0.1"),
                # jobs that share a node must not meet at the same port
                master_port=read_number(env.get("MASTER_PORT") or str(20000 + job % 20000), "MASTER_PORT"),
                processes_per_node=read_number(env.get("SLURM_GPUS_ON_NODE") or str(default), "SLURM_GPUS_ON_NODE"),
                source="Slurm",
            ),
            "SLURM_JOB_NODELIST",
            has_address=bool(nodelist or env.get("MASTER_ADDR")),
        )
    if env.get("NODE_RANK", "0") != "0":  # each node would train alone, in one run folder
        raise UsageError(f"NODE_RANK={env['NODE_RANK']!r}, but NNODES is not set; set it to the number of nodes")
    return Topology(1, 1, 0, "127.0.0.1", DEFAULT_PORT, default, "this machine")


def first_host(nodelist: str) -> str:
    """First host of a Slurm node list: `gpu[03-07,12],login1` -> `gpu03`.

    Raises:
        UsageError: not a node list.
    """
    match = re.match(r"([^,\[\]]+)(?:\[([^\]]+)\])?([^,\[\]]*)", nodelist)
    if not match:
        raise UsageError(f"SLURM_JOB_NODELIST={nodelist!r} is not a node list")
    prefix, ranges, suffix = match.groups()
    return prefix + (re.split(r"[,-]", ranges)[0] if ranges else "") + suffix


def _build(
    env: dict[str, str], source: str, *, nodes: str, rank: str, addr: str, port: str, processes: str, default: int
) -> Topology:
    low, _, high = env.get(nodes, "1").partition(":")
    count = env.get(processes, "auto")
    topology = Topology(
        min_nodes=read_number(low, nodes),
        max_nodes=read_number(high or low, nodes),
        node_rank=read_number(env.get(rank, "0"), rank),
        master_addr=env.get(addr, "127.0.0.1"),
        master_port=read_number(env.get(port, str(DEFAULT_PORT)), port),
        processes_per_node=default if count in ("auto", "gpu", "cpu") else read_number(count, processes),
        source=source,
    )
    return _check(topology, addr, has_address=addr in env)


def _check(topology: Topology, addr: str, *, has_address: bool) -> Topology:
    if not 1 <= topology.min_nodes <= topology.max_nodes or topology.processes_per_node < 1:
        shape = f"{topology.min_nodes}:{topology.max_nodes} nodes x {topology.processes_per_node} processes"
        raise UsageError(
            f"{topology.source}: {shape} make no job; at least 1 of each is needed, the smaller number first"
        )
    if not 0 < topology.master_port <= 65535:
        raise UsageError(f"{topology.source}: port {topology.master_port} is not one of 1 to 65535 (MASTER_PORT)")
    if not 0 <= topology.node_rank < topology.max_nodes:
        raise UsageError(
            f"{topology.source}: node rank {topology.node_rank} is outside a job of {topology.max_nodes} nodes; "
            f"they count from 0"
        )
    if topology.max_nodes > 1 and not has_address:
        raise UsageError(
            f"{topology.source}: {topology.max_nodes} nodes, but {addr} is not set; set it to node 0's address"
        )
    return topology


def read_number(text: str, name: str) -> int:
    """Parse a variable's number.

    Raises:
        UsageError: it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a number") from None
