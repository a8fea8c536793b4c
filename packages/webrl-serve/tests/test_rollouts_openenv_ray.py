"""Workers on Ray: a cluster of two nodes, one of which is killed while episodes are under way."""

import asyncio

import pytest
from rollouts_builders import ClickNamedButton, miniwob

from webrl.config import validate_config
from webrl.rollouts.collect import collect
from webrl.runs.store import read_records
from webrl.types import Status, Trajectory

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.ray]

NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture
def cluster(monkeypatch):
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    second = cluster.add_node(**NODE)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


def test_a_node_that_dies_costs_attempts_and_every_episode_ends_with_a_status(cluster, tmp_path):
    import ray

    both, second = cluster
    out = tmp_path / "trajectories.jsonl"
    tasks = [miniwob("click-button", seed) for seed in range(16)]
    config = validate_config(
        {"rollout": {"backend": "ray", "num_workers": 2, "envs_per_worker": 2, "max_retries": 3}}, "test"
    )
    nodes = []

    def kill_once(_):
        if not nodes:
            actors = [a for a in ray._private.state.actors().values() if a["State"] == "ALIVE"]
            nodes.extend({a["Address"]["NodeID"] for a in actors})
            both.remove_node(second, allow_graceful=False)

    summary = asyncio.run(
        collect(tasks, config, ClickNamedButton(wait_s=0.5), out, phase=1, prefix="p01", on_episode=kill_once)
    )
    assert len(nodes) == 2, "the workers were not spread over the nodes"
    trajectories = list(read_records(out, Trajectory))
    assert {t.task.task_id for t in trajectories} == {task.task_id for task in tasks}
    assert summary == {"page_ended": 16}
    assert all(t.status is Status.PAGE_ENDED and t.env_reward == 1.0 for t in trajectories)
    assert max(t.attempts for t in trajectories) > 1
