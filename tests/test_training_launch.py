"""The launcher: every convention it reads, and two "nodes" on one machine."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import OF_THE_HUB, descendants, kill, living, wait_until
from training_builders import FAR, make_actor, make_records

from webrl.cli import launch as launcher
from webrl.cli.train_worker import parse
from webrl.config import RunConfig, load_config
from webrl.config.resources import find_config
from webrl.errors import UsageError
from webrl.phase import run_stage
from webrl.preflight import check_inputs
from webrl.runs.store import read_json, write_records
from webrl.training.scoring import score_actions
from webrl.training.topology import first_host, local_processes, read_topology
from webrl.training.update import train_critic

ROOT = Path(__file__).resolve().parents[1]


def shape(environment: dict[str, str], num_gpus: int = 8) -> tuple[int, int, int, str, int, int]:
    t = read_topology(environment, num_gpus)
    return t.min_nodes, t.max_nodes, t.node_rank, t.master_addr, t.master_port, t.processes_per_node


def test_without_variables_it_is_this_machine() -> None:
    assert shape({}, num_gpus=0) == (1, 1, 0, "127.0.0.1", 29500, 1)
    assert shape({}) == (1, 1, 0, "127.0.0.1", 29500, 8)


PLAIN = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "7", "NPROC_PER_NODE": "4"}
MLP = {
    "MLP_WORKER_NUM": "3", "MLP_ROLE_INDEX": "2", "MLP_WORKER_0_HOST": "w0", "MLP_WORKER_0_PORT": "2222",
    "MLP_WORKER_GPU": "8",
}  # fmt: skip
POD = {"WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "m", "PET_NPROC_PER_NODE": "auto"}
SLURM = {"SLURM_JOB_ID": "123456", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[03-04]"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (PLAIN | {"MLP_WORKER_NUM": "9", "SLURM_JOB_ID": "1", "SLURM_NNODES": "5"}, (2, 2, 1, "a", 7, 4)),
        ({"NPROC_PER_NODE": "2"}, (1, 1, 0, "127.0.0.1", 29500, 2)),
        ({"NNODES": "2:4", "MASTER_ADDR": "a"}, (2, 4, 0, "a", 29500, 8)),
        (MLP, (3, 3, 2, "w0", 2222, 8)),
        (POD, (4, 4, 3, "job-master-0", 23456, 8)),
        (PET | POD, (2, 2, 1, "m", 29500, 8)),
        (SLURM, (2, 2, 1, "gpu03", 20000 + 123456 % 20000, 8)),
        (SLURM | {"SLURM_GPUS_ON_NODE": "4"}, (2, 2, 1, "gpu03", 20000 + 123456 % 20000, 4)),
    ],
)
def test_every_launchers_variables_are_read_and_plain_ones_come_first(environment, expected):
    assert shape(environment) == expected


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [("gpu[03-07,12],login1", "gpu03"), ("a1,a2", "a1"), ("n[1,5].site", "n1.site"), ("solo", "solo")],
)
def test_first_host_of_a_slurm_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_an_engine_of_several_processes_is_refused_where_there_is_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for key in ("critic.engine", "actor.engine"):
        config = load_config(find_config("demo"), [f"{key}=fsdp2"])
        with pytest.raises(UsageError, match=rf"{key}=fsdp2 shards .* not two here: .* NPROC_PER_NODE"):
            check_inputs(config, ("rollout", "train"))
        check_inputs(config, ("rollout",))
        with monkeypatch.context() as launched:
            launched.setenv("NPROC_PER_NODE", "2")
            with pytest.raises(UsageError, match=r"2 training processes, but 1 GPU\(s\): set NPROC_PER_NODE=1"):
                check_inputs(config, ("rollout", "train"))
            launched.setenv("CUDA_VISIBLE_DEVICES", "0,1")
            check_inputs(config, ("train",))
            launched.setenv("CUDA_VISIBLE_DEVICES", "0")
            launched.setenv("WORLD_SIZE", "2")
            check_inputs(config, ("train",))


def test_a_run_trains_by_one_process_unless_it_is_told_to_or_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "MLP_", "PET_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    plain, on_cpu = RunConfig(), RunConfig.model_validate({"models": {"device": "cpu"}})
    sharded = RunConfig.model_validate({"critic": {"engine": "fsdp2"}})
    assert [local_processes(config) for config in (plain, sharded)] == [1, 4]
    monkeypatch.setenv("NPROC_PER_NODE", "auto")
    assert [local_processes(config) for config in (plain, on_cpu)] == [4, 1]
    monkeypatch.setenv("NPROC_PER_NODE", "2")
    assert [local_processes(config) for config in (plain, on_cpu, sharded)] == [2, 2, 2]
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert local_processes(sharded) == 1


@pytest.mark.parametrize("host", ["no-such-host.invalid", "two..dots"])
def test_a_name_of_node_0_that_nobody_knows_ends_the_job(host, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(launcher, "NAME_SECONDS", 0)
    for name, value in {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": host, "WEBRL_LOG_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    assert launcher.main([]) == 1
    assert f"MASTER_ADDR={host!r} did not resolve within 0 s" in caplog.text


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"NNODES": "2"}, "MASTER_ADDR is not set"),
        ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "a"}, "node rank 2 is outside a job of 2"),
        ({"NNODES": "two"}, "NNODES='two' is not a number"),
        ({"NNODES": "0"}, "make no job"),
        ({"NODE_RANK": "1", "MASTER_ADDR": "a"}, "NODE_RANK='1', but NNODES is not set; set it to the number of nodes"),
        ({"SLURM_JOB_ID": "abc", "SLURM_NNODES": "1"}, "SLURM_JOB_ID='abc' is not a number"),
    ],
)
def test_contradictions_are_refused_by_name(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_topology(environment, 1)


def launch(*command: str | Path, **environment: str) -> tuple[int, str]:
    """Exit code and output of the launcher, which finds no job's variables but these."""
    ours = ("SLURM_", "MLP_", "PET_", "NNODES", "NODE_RANK", "WORLD_SIZE", "RANK", "MASTER_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [*map(str, command)], env=plain | {"PYTHON": sys.executable} | environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False, timeout=300,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_launcher_runs_by_sh_and_by_a_link_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "train.sh"
    link.symlink_to(ROOT / "run_multinode.sh")
    monkeypatch.chdir(tmp_path)
    code, said = launch("sh", link, "demo", "--dry-run", f"runs_dir={tmp_path}", *OF_THE_HUB)
    assert (code, "phase 0: train to do" in said) == (0, True), said


def test_a_python_without_the_packages_is_named_with_what_makes_one(tmp_path: Path) -> None:
    copy = tmp_path / "run_multinode.sh"
    copy.write_text((ROOT / "run_multinode.sh").read_text())
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "readlink"):
        found = shutil.which(tool)
        assert found
        (tmp_path / "bin" / tool).symlink_to(found)
    code, said = launch("bash", copy, PATH=str(tmp_path / "bin"), PYTHON="")
    assert code == 2
    assert said.startswith("run_multinode.sh: python3 lacks webrl's packages: run `make setup` in ")
    assert launch("bash", copy, PYTHON="/nowhere/python")[1].startswith("run_multinode.sh: /nowhere/python lacks")


def test_a_taken_port_is_said_at_once(tmp_path: Path) -> None:
    script = ROOT / "run_multinode.sh"
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        node = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "NPROC_PER_NODE": "1"}
        code, said = launch("bash", script, **node, MASTER_PORT=port, WEBRL_LOG_DIR=str(tmp_path))
    assert (code, "EADDRINUSE" in said) == (1, True), said


def make_run(folder: Path, **actor: object) -> Path:
    """A run folder whose phase 1 is due for training."""
    train = {"lr": 1e-2, "batch_size": 2, "max_tokens": 128, "epochs": 1.0}
    models = {"device": "cpu", "actor": str(make_actor(folder / "actor"))}
    sections = {"models": models, "critic": train | {"epochs": 0.5}, "actor": train | FAR | actor}
    config = RunConfig.model_validate({"name": "run", "runs_dir": str(folder), **sections})
    records = score_actions(make_records(), folder / "actor", config)
    for phase in (0, 1):
        path = folder / "run" / f"phase_{phase:02d}"
        for stage in ("gen-tasks", "filter-tasks", "rollout", "label", "replay", *(("train", "eval") * (phase == 0))):
            (path / "stages").mkdir(parents=True, exist_ok=True)
            (path / "stages" / f"{stage}.json").write_text('{"counts": {}, "seconds": 0, "peak_mib": 0}')
        write_records(path / "train.jsonl", records)
        write_records(path / "train_filter.jsonl", records)
    make_actor(folder / "run" / "phase_00" / "actor")
    train_critic(
        records, folder / "actor", folder / "run/phase_00/critic", config, seed=0, metrics_path=folder / "m.jsonl"
    )
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return folder / "run"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def two_nodes(run: Path, count: int = 2, **extra: str) -> Iterator[list[subprocess.Popen[str]]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "MLP_", "PET_"))}
    job = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NPROC_PER_NODE": "1"}
    here = {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    environment |= job | here | {"WEBRL_LOG_DIR": str(run.parent / "logs")} | extra
    command = ["bash", str(ROOT / "run_multinode.sh"), "--run", str(run)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    nodes = [
        subprocess.Popen(command, env=environment | {"NODE_RANK": str(rank)}, text=True, **pipes)
        for rank in range(count)
    ]
    try:
        yield nodes
    finally:
        for node in nodes:
            if node.poll() is None:
                kill(descendants(node.pid))
                node.kill()
                node.wait()


def finish(nodes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str]]:
    outputs = [node.communicate(timeout=400)[0] for node in nodes]
    return [node.returncode for node in nodes], outputs


def actor_lines(run: Path) -> list[dict[str, float]]:
    path = run / "phase_01" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["name"] == "actor"]


def kill_a_worker(node: subprocess.Popen[str], run: Path, after_step: int, num_workers: int = 1) -> int:
    """kill -9 the worker of a node once the actor has done some steps; gives its pid."""
    wait_until(lambda: len(actor_lines(run)) >= after_step or node.poll() is not None, 300)
    assert node.poll() is None, node.communicate()[0]
    workers = [p for p in living(descendants(node.pid)) if "webrl.cli.train_worker" in p.cmdline()]
    assert len(workers) == num_workers
    workers[0].send_signal(signal.SIGKILL)
    return workers[0].pid


@pytest.mark.slow
def test_one_command_trains_by_two_processes_which_end_with_it_and_go_on_at_its_next_start(tmp_path: Path) -> None:
    run = make_run(tmp_path, epochs=10.0, save_every=5)
    command = [sys.executable, "-m", "webrl.cli", "train", "--run", str(run)]
    environment = os.environ | {"NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"WEBRL_LOG_DIR": str(tmp_path / "logs")}
    first = subprocess.Popen(command, env=environment)
    try:
        wait_until(lambda: len(actor_lines(run)) >= 12 or first.poll() is not None, 300)
        assert first.poll() is None
        workers = [p for p in living(descendants(first.pid)) if "webrl.cli.train_worker" in p.cmdline()]
        assert len(workers) == 2
        for worker in workers:  # held, so that training cannot reach its end while the other command starts
            worker.suspend()
        other = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (other.returncode, f"process {first.pid} on" in other.stderr) == (1, True), other.stderr
    finally:
        first.kill()
        first.wait()
    for worker in living(workers):
        worker.resume()
    wait_until(lambda: not living(workers), 60)
    second = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert "resumed from" in second.stderr
    assert [line["step"] for line in actor_lines(run)] == list(range(1, 91))
    assert read_json(run / "phase_01" / "stages" / "train.json")["counts"] == json.loads(second.stdout)


@pytest.mark.slow
def test_a_dead_rank_ends_the_job_and_its_log_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, epochs=400.0)
    with two_nodes(run, MAX_RESTARTS="0") as nodes:
        pid = kill_a_worker(nodes[1], run, after_step=3)
        codes, outputs = finish(nodes)
    assert codes[0] != 0
    assert codes[1] != 0
    assert f"pid {pid}) died with signal 9" in outputs[1]
    assert str(tmp_path / "logs" / "node1") in outputs[1]
    assert not (run / "phase_01" / "actor").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("num_nodes", "num_workers"), [(2, 1), (1, 2)])
def test_a_dead_rank_is_restarted_with_the_others_from_the_last_checkpoint(tmp_path, num_nodes, num_workers):
    run = make_run(tmp_path, epochs=10.0, save_every=5)
    sizes = {"NNODES": str(num_nodes), "NPROC_PER_NODE": str(num_workers)}
    with two_nodes(run, count=num_nodes, MAX_RESTARTS="2", **sizes) as nodes:
        kill_a_worker(nodes[-1], run, after_step=12, num_workers=num_workers)
        codes, outputs = finish(nodes)
    assert codes == [0] * num_nodes, outputs
    assert [line["step"] for line in actor_lines(run)] == list(range(1, 91))
    assert "resumed from" in outputs[0]
    assert "actor_loss" in outputs[0]
    assert f"{num_nodes} node(s) x {num_workers} process(es), this is node {num_nodes - 1}" in outputs[-1]
    assert (run / "phase_01" / "actor" / "model.safetensors").is_file()
    assert read_json(run / "phase_01" / "stages" / "train.json")["counts"]["actor_samples"] == 18


@pytest.mark.slow
def test_a_kill_after_the_model_is_in_place_loses_neither_counts_nor_space(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    config = load_config(run / "config.yaml")
    phase = run / "phase_01"
    whole = run_stage(config, "train", 1)
    for late in (phase / "stages" / "train.json", phase / "critic_counts.json", phase / "actor_counts.json"):
        late.unlink()
    (phase / ".critic.state" / "step_00000001").mkdir(parents=True)
    again = run_stage(config, "train", 1)
    assert {k: v for k, v in again.items() if "seconds" not in k and "tokens_per_s" not in k and "gib" not in k} == {
        k: v for k, v in whole.items() if "seconds" not in k and "tokens_per_s" not in k and "gib" not in k
    }
    assert read_json(phase / "critic_counts.json")["critic_steps"] == again["critic_steps"]
    assert not list(phase.glob(".*.state"))


@pytest.mark.parametrize("command", [[], ["sft"]])
def test_settings_may_stand_on_both_sides_of_an_option(command: list[str], capsys: Any) -> None:
    args = parse([*command, "demo", "seed=1", "--run", "here", "sft.lr=1e-3"])
    assert args.settings == ["demo", "seed=1", "sft.lr=1e-3"]
    assert args.run == Path("here")
    with pytest.raises(SystemExit):
        parse([*command, "demo", "--dta", "x"])
    assert "--dta" in capsys.readouterr().err


def test_settings_may_follow_the_paths_of_data_and_a_path_may_look_like_one(tmp_path: Path) -> None:
    named = tmp_path / "lr=1"
    named.mkdir()
    args = parse(["sft", "demo", "--data", "a", str(named), "models.actor=hub/name", "sft.lr=1e-3"])
    assert args.data == [Path("a"), named]
    assert args.settings == ["demo", "models.actor=hub/name", "sft.lr=1e-3"]
