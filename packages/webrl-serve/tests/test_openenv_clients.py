"""Public clients and scripts against `webrl serve-env`: nothing of theirs is changed but the address."""

import subprocess

import pytest
from openenv_builders import run_script, server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# As lists a page of this size stays below 1 MB, which is all that openenv-core 0.2.1 takes.
SIZE = [200, 240, 3]


@pytest.fixture(scope="module")
def shared():
    with server("--viewport", "240x200", num_sessions=6) as (url, _):
        yield url


def test_trls_vision_script_sees_every_step_of_every_client(shared):
    seen = run_script("openenv==0.10.0", "environment_factory", shared)
    assert len(seen) == 2 * 3 * 6
    assert [step["image"] for step in seen] == [SIZE] * len(seen)  # blind_share 0
    assert all(step["html"] and step["goal"] == "Click the button." for step in seen)
    assert all("13" in step["clickable"] for step in seen if not step["done"])
    half = len(seen) // 2
    for steps in (seen[:half], seen[half:]):
        assert [(step["reward"], step["done"]) for step in steps] == [(0.0, False)] * 15 + [(1.0, True)] * 3
        assert [bool(step["error"]) for step in steps] == [False] * 12 + [True] * 3 + [False] * 3


@pytest.mark.parametrize("package", ["openenv-core==0.2.1", "openenv==0.10.0"])
def test_trls_text_script_raises_its_own_limit_and_plays(shared, package):
    seen = run_script(package, "text_only", shared)
    assert [(step["reward"], step["done"]) for step in seen] == [(0.0, False)] * 2 + [(1.0, True)]
    assert all("button 'Click Me!'" in step["text"] for step in seen[:2])


@pytest.mark.parametrize(
    ("package", "script"),
    [("openenv-core==0.2.1", "rollout_func"), ("openenv==0.10.0", "rollout_func"), ("openenv-core==0.1.1", "cookbook")],
)
def test_scripts_with_one_client_and_a_rollout_function_play_episode_after_episode(shared, package, script):
    *seen, state = run_script(package, script, shared)
    assert [(step["reward"], step["done"]) for step in seen] == [(0.0, False), (0.0, False), (1.0, True)] * 2
    assert [step["image"] for step in seen] == [SIZE] * 6
    assert state == {"task": "click-test", "steps": 2, "reward": 1.0}


@pytest.mark.parametrize("package", ["openenv-core==0.3.0", "openenv==0.10.0"])
@pytest.mark.parametrize(("script", "episodes"), [("synchronous", 1), ("asynchronous", 2)])
def test_the_documented_ways_to_use_the_client_play(shared, package, script, episodes):
    seen = run_script(package, script, shared)
    assert [(step["reward"], step["done"]) for step in seen] == [(0.0, False), (1.0, True)] * episodes
    assert [step["image"] for step in seen] == [SIZE] * len(seen)


@pytest.mark.parametrize("package", ["openenv-core==0.3.0", "openenv==0.10.0"])
def test_openenvs_own_validation_of_a_running_server_finds_nothing_missing(shared, package):
    assert run_script(package, "validate", shared) == [{"mode": "simulation", "failed": []}]


def test_a_client_that_takes_one_megabyte_is_named_with_its_fix():
    with server("--viewport", "1280x720", num_sessions=1, stderr=subprocess.PIPE) as (url, process):
        with pytest.raises(AssertionError, match="message too big"):
            run_script("openenv-core==0.2.1", "rollout_func", url)
        line = process.stderr.readline()
    assert "openenv-core up to 0.2.1: 1 MB" in line
    assert "--viewport" in line
