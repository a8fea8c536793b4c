"""Public training scripts, call by call, with the public client packages; `test_openenv_clients.py` runs them.

`python tests/openenv_scripts.py SCRIPT URL` with one client package on PYTHONPATH prints what the script saw as JSON.
OpenEnv's BrowserGym client lies in no package, only in its repository: `browsergym_client` makes it anew on the
package's own base class, with the fields and types that it has there (`tests/data/openenv_browsergym_schema.json`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import Any


def message_types(action: type, observation: type, state: type) -> tuple[type, type, type]:
    """The BrowserGym environment's pydantic models on the package's base classes."""

    class BrowserGymAction(action):
        action_str: str

    class BrowserGymObservation(observation):
        text: str = ""
        url: str = ""
        screenshot: list[list[list[int]]] | None = None
        goal: str = ""
        axtree_txt: str = ""
        pruned_html: str = ""
        error: str = ""
        last_action_error: bool = False

    class BrowserGymState(state):
        benchmark: str = ""
        task_name: str = ""
        task_id: str | None = None
        goal: str = ""
        current_url: str = ""
        max_steps: int | None = None
        cum_reward: float = 0.0

    for made in (BrowserGymAction, BrowserGymObservation, BrowserGymState):
        made.model_rebuild(_types_namespace=globals() | {"Any": Any})
    return BrowserGymAction, BrowserGymObservation, BrowserGymState


def with_parsers(base: type, result_type: type, models: tuple[type, type, type]) -> type:
    """OpenEnv's BrowserGym client on one of its packages' base classes."""
    _, observation_type, state_type = models

    class BrowserGymEnv(base):
        def _step_payload(self, action):
            return {"action_str": action.action_str, "metadata": action.metadata}

        def _parse_result(self, payload):
            seen = payload["observation"]
            fields = {name: seen[name] for name in SEEN if name in seen}
            observation = observation_type(
                **fields, done=payload["done"], reward=payload["reward"], metadata=seen.get("metadata", {})
            )
            return result_type(observation=observation, reward=payload["reward"], done=payload["done"])

        def _parse_state(self, payload):
            return state_type(**payload)

    return BrowserGymEnv


SEEN = ("text", "url", "screenshot", "goal", "axtree_txt", "pruned_html", "error", "last_action_error")


def browsergym_client() -> tuple[type, type]:
    """(BrowserGymEnv, BrowserGymAction) on the WebSocket client of openenv-core 0.2 and later, or openenv."""
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server.types import Action, Observation, State

    models = message_types(Action, Observation, State)
    return with_parsers(EnvClient, StepResult, models), models[0]


def http_client() -> tuple[type, type]:
    """The same on the HTTP client of openenv-core 0.1, whose messages are dataclasses."""
    from dataclasses import dataclass, field

    from openenv_core.client_types import StepResult
    from openenv_core.http_env_client import HTTPEnvClient
    from pydantic import BaseModel, Field

    @dataclass(kw_only=True)
    class BrowserGymAction:
        action_str: str
        metadata: dict[str, Any] = field(default_factory=dict)

    class Message(BaseModel):
        metadata: dict[str, Any] = Field(default_factory=dict)
        done: bool = False
        reward: float | None = None

    class State(BaseModel):
        episode_id: str | None = None
        step_count: int = 0

    models = message_types(Message, Message, State)
    return with_parsers(HTTPEnvClient, StepResult, models), BrowserGymAction


def summary(result: Any) -> dict[str, Any]:
    """What a script looks at in an answer."""
    observation = result.observation
    screenshot = observation.screenshot
    elements = observation.metadata.get("browsergym_obs", {}).get("extra_element_properties", {})
    return {
        "goal": observation.goal,
        "text": observation.axtree_txt,
        "html": observation.pruned_html,
        "image": [len(screenshot), len(screenshot[0]), len(screenshot[0][0])] if screenshot else None,
        "error": observation.error if observation.last_action_error else "",
        "clickable": [bid for bid, fields in elements.items() if fields["clickable"]],
        "reward": float(result.reward or 0.0),
        "done": result.done,
    }


def bid_of(text: str, name: str) -> str:
    """The bid on the line of a page that ends with a name in quotes."""
    line = next(line for line in text.splitlines() if line.rstrip().endswith(f"'{name}'"))
    return line.strip().partition("]")[0].removeprefix("[")


def environment_factory(url: str, num_envs: int = 3) -> list[dict[str, Any]]:
    """TRL's `grpo_browsergym.py`: one client for each sample of a batch, made at once, stepped in turn, then again."""
    env_type, action_type = browsergym_client()
    clients = [env_type(base_url=url) for _ in range(num_envs)]
    seen = []
    for _ in range(2):  # two training steps; nobody closes a client in between
        seen += [summary(client.reset(task_name="click-test")) for client in clients]
        for words in ("noop()", "scroll('down')", "send_keys('Tab')", "fill('no such bid', 'text')"):
            seen += [summary(client.step(action_type(action_str=words))) for client in clients]
        bid = bid_of(seen[0]["text"], "Click Me!")
        seen += [summary(client.step(action_type(action_str=f"click('{bid}')"))) for client in clients]
    return seen


def text_only(url: str) -> list[dict[str, Any]]:
    """TRL's `browsergym_llm.py`, which raises the client's limit of 1 MB a message by hand before each reset."""
    env_type, action_type = browsergym_client()
    client = env_type(base_url=url)
    client.connect()
    protocol = client._ws.protocol
    limit = "max_size" if hasattr(protocol, "max_size") else "max_message_size"
    if getattr(protocol, limit, None) == 2**20:
        setattr(protocol, limit, 100 * 1024 * 1024)
    seen = [summary(client.reset(task_name="click-test"))]
    bid = bid_of(seen[0]["text"], "Click Me!")
    actions = (action_type(action_str=words) for words in ("noop()", f"click({bid!r})"))
    return seen + [summary(client.step(action)) for action in actions]


def rollout_func(url: str, make: Any = browsergym_client) -> list[dict[str, Any]]:
    """TRL's older `openenv/browsergym.py` and the cookbook's `fine_tune.py`: one client, many episodes."""
    env_type, action_type = make()
    client = env_type(base_url=url)
    seen = []
    for _ in range(2):
        result = client.reset()
        for step in range(5):
            seen.append(summary(result))
            if result.done:
                break
            words = "noop()" if step == 0 else f"click('{bid_of(result.observation.axtree_txt, 'Click Me!')}')"
            result = client.step(action_type(action_str=words))
    state = client.state()
    client.close()
    return [*seen, {"task": state.task_name, "steps": state.step_count, "reward": state.cum_reward}]


def synchronous(url: str) -> list[dict[str, Any]]:
    """`with BrowserGymEnv(…).sync() as env`, as OpenEnv's documentation has it since 0.2.2."""
    env_type, action_type = browsergym_client()
    with env_type(base_url=url).sync() as env:
        seen = [summary(env.reset(task_name="click-button", seed=0))]
        seen.append(summary(env.step(action_type(action_str=f"click('{bid_of(seen[0]['text'], 'no')}')"))))
    return seen


def asynchronous(url: str) -> list[dict[str, Any]]:
    """`async with BrowserGymEnv(…) as env`, several at a time."""
    env_type, action_type = browsergym_client()

    async def episode() -> list[dict[str, Any]]:
        async with env_type(base_url=url) as env:
            first = summary(await env.reset(task_name="click-button", seed=0))
            words = f"click('{bid_of(first['text'], 'no')}')"
            return [first, summary(await env.step(action_type(action_str=words)))]

    async def both() -> list[list[dict[str, Any]]]:
        return await asyncio.gather(episode(), episode())

    return [result for played in asyncio.run(both()) for result in played]


def shop(url: str, make: Any = browsergym_client) -> list[dict[str, Any]]:
    """Two tasks of the arena with one client, as `rollout_func` plays; nothing but the goal and the page is read."""
    env_type, action_type = make()
    client = env_type(base_url=url)
    result = client.reset(task_name="arena.shop.search-eval-0-0") if make is browsergym_client else client.reset()
    seen = [summary(result)]
    words = seen[0]["goal"].split('"')[1]
    bid = bid_of(seen[0]["text"], "Search").strip()
    actions = (f"fill({bid!r}, {words!r})", f"click({bid!r})", "send_keys('Enter')")
    seen += [summary(client.step(action_type(action_str=action))) for action in actions]
    if make is browsergym_client:
        client.reset(task_name="arena.shop_admin.order-customer-eval-0-0")
        seen.append(summary(client.step(action_type(action_str="send_msg_to_user('Nobody')"))))
    client.close()
    return seen


def validate(url: str) -> list[dict[str, Any]]:
    """`openenv validate --url`: what it finds."""
    from openenv.cli._validation import validate_running_environment

    found = validate_running_environment(url)
    return [{"mode": found["mode"], "failed": [one["id"] for one in found["criteria"] if not one["passed"]]}]


functions = (environment_factory, text_only, rollout_func, synchronous, asynchronous, shop, validate)
SCRIPTS = {function.__name__: function for function in functions}
# With the client of the cookbook's lock file, which speaks HTTP, and whose reset names no task.
SCRIPTS |= {"cookbook": partial(rollout_func, make=http_client), "shop_over_http": partial(shop, make=http_client)}

if __name__ == "__main__":
    print(json.dumps(SCRIPTS[sys.argv[1]](sys.argv[2])))
