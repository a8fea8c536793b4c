"""`bash run_multinode.sh [CONFIG] [key=value …]`: train the current phase on all processes of this job.

One process is replaced by the worker; several are started by torch's elastic agent, which restarts them from the
last checkpoint after a failure (`MAX_RESTARTS`, default 3 on several nodes, else 0) and ends the job when it gives up,
naming the rank that died first and its log. Every rank's output is in the log folder; rank 0 also speaks here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from webrl.config import RunConfig
from webrl.errors import StageError, TrainingError, UsageError, WebRLError
from webrl.runs.machine import cpu_environment, visible_gpus
from webrl.training.topology import Topology, read_number, read_topology

logger = logging.getLogger(__name__)
WORKER = "webrl.cli.train_worker"
NAME_SECONDS = 60
"""How long to keep resolving node 0's host name before giving up."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        topology = read_topology(os.environ, len(visible_gpus()))
        logger.info(
            "%s: %d node(s) x %d process(es), this is node %d",
            topology.source, topology.max_nodes, topology.processes_per_node, topology.node_rank,
        )  # fmt: skip
        os.environ.update(cpu_environment())
        if topology.max_nodes == topology.processes_per_node == 1 or {"-h", "--help", "--dry-run"} & set(arguments):
            if sys.stdout is not None:  # which may be closed
                sys.stdout.flush()
            for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):  # a pod's, where it is the only one
                os.environ.pop(name, None)
            os.execv(sys.executable, [sys.executable, "-m", WORKER, *arguments])
        # The agent's own store outlives a restart, and with it the addresses of the ranks before (torch 2.13).
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // topology.processes_per_node)))
        launch(topology, arguments)
        return 0
    except WebRLError as error:
        logger.error("webrl: %s", error)
        return error.exit_code


def launch(topology: Topology, arguments: Sequence[str]) -> None:
    """Start this node's processes and wait for the job.

    Raises:
        TrainingError: the job failed, and the rank that died first and its log are named; a signal ended it; or the
            name of node 0 does not resolve, which torch's rendezvous would keep retrying.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logs = (Path(os.environ.get("WEBRL_LOG_DIR", "runs/logs")) / f"node{topology.node_rank}").absolute()
    logs.mkdir(parents=True, exist_ok=True)
    several = topology.max_nodes > 1
    max_restarts = read_number(os.environ.get("MAX_RESTARTS") or ("3" if several else "0"), "MAX_RESTARTS")
    if max_restarts < 0:
        raise UsageError(f"MAX_RESTARTS={max_restarts}: expected 0 or more")
    until = time.monotonic() + NAME_SECONDS
    while several:  # on a cluster that is just starting this can take a while
        try:
            socket.getaddrinfo(topology.master_addr.strip("[]"), None)
            break
        except (OSError, UnicodeError) as error:  # a label that is empty or too long
            reason = getattr(error, "strerror", None) or str(error)
        if time.monotonic() >= until:
            raise TrainingError(
                f"MASTER_ADDR={topology.master_addr!r} did not resolve within {NAME_SECONDS} s ({reason}): name node 0 "
                "by an address that every node can reach"
            )
        time.sleep(2)
    config = LaunchConfig(
        min_nodes=topology.min_nodes,
        max_nodes=topology.max_nodes,
        nproc_per_node=topology.processes_per_node,
        run_id=os.environ.get("WEBRL_JOB_ID", os.environ.get("SLURM_JOB_ID", "webrl")),
        rdzv_backend="c10d",
        # port 0 lets a job on one machine choose a free one
        rdzv_endpoint=f"{topology.master_addr}:{topology.master_port if several else 0}",
        rdzv_configs={"is_host": topology.node_rank == 0, "timeout": 900},
        max_restarts=max_restarts,
        monitor_interval=1.0,
        local_addr=os.environ.get("POD_IP"),
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL, tee=Std.ALL, local_ranks_filter={0}),
    )
    logger.info("logs of all ranks: %s", logs)
    try:
        elastic_launch(config, sys.executable)("-m", WORKER, *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        log = Path(failure.error_file).parent / "stderr.log" if failure.error_file not in ("", "<N/A>") else None
        how = f"signal {-failure.exitcode}" if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        lines = log.read_text(errors="replace").splitlines() if log and log.is_file() else []
        tail = "".join(f"\n    {line}" for line in [line for line in lines if line.strip()][-5:])
        raise TrainingError(
            f"rank {rank} (node {topology.node_rank}, local rank {failure.local_rank}, pid {failure.pid}) died with "
            f"{how}; its log: {log}{tail}"
        ) from None
    except SignalException as error:
        raise TrainingError(f"node {topology.node_rank} was ended by {error.sigval.name}") from None
    except Exception as error:  # the rendezvous raises private exceptions of its own
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise TrainingError(
            f"node {topology.node_rank} lost the job ({type(error).__name__}: {reason}); another node ended it, or "
            f"{topology.master_addr}:{topology.master_port} cannot be reached; see the logs in {logs}"
        ) from error


@contextlib.contextmanager
def joined(config: RunConfig, lock: AbstractContextManager[None]) -> Iterator[None]:
    """Join the job's processes, if there are several; the main one, which writes, takes the lock.

    Raises StageError on every process where the lock raises it.
    """
    from webrl.llm.loading import pick_device
    from webrl.training.topology import broadcast, is_main, join, leave

    join(pick_device(config.models.device))
    try:
        with contextlib.ExitStack() as stack:
            reason = None
            if is_main():
                try:
                    stack.enter_context(lock)
                except StageError as error:
                    reason = str(error)
            if reason := broadcast(reason):
                raise StageError(reason)
            yield
    finally:
        leave()


if __name__ == "__main__":
    sys.exit(main())
