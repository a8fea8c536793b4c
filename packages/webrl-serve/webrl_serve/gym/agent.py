"""A webrl checkpoint as an agent of BrowserGym's experiments, over `webrl serve-model`.

    ExpArgs(agent_args=WebrlAgentArgs(base_url="http://127.0.0.1:8000/v1"), env_args=EnvArgs("miniwob.click-test", 1))

The server makes the prompt of an observation as it was made in training, and reads the answer; here an observation
becomes the text that training shows of a page, and an action goes to BrowserGym's own environment. Episodes also end as
in training: by the agent's message, and after too many unreadable or equal answers in a row.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from webrl.config.extras import require
from webrl.errors import UsageError
from webrl.net import MODEL_TOKEN, is_loopback

require("agent", "webrl_serve.gym.agent")
from browsergym.core.action.highlevel import HighLevelActionSet  # noqa: E402
from browsergym.experiments import AbstractAgentArgs, Agent, AgentInfo  # noqa: E402
from browsergym.utils.obs import flatten_axtree_to_str  # noqa: E402

_PAGE_TEXT: dict[str, Any] = {
    "ignored_roles": ["LineBreak", "InlineTextBox"],
    "ignored_properties": ("editable", "readonly", "level", "settable", "multiline", "invalid", "focusable", "url"),
}
"""BrowserGym's defaults without what only recent Chromium adds, which training does not show either."""
_LAST_WORDS = ("send_msg_to_user(", "report_infeasible(")
_NOTHING = "noop(0)"
"""What is done for an answer that cannot be read."""


@dataclass
class WebrlAgentArgs(AbstractAgentArgs):
    """Where the checkpoint is served. The token comes from WEBRL_MODEL_TOKEN in the environment: these are pickled."""

    agent_name: str = "webrl"
    """Name in the records of experiments."""
    base_url: str = "http://127.0.0.1:8000/v1"
    """Address that `webrl serve-model` prints."""
    model: str | None = None
    """Name of the model; None: the one that is served."""
    temperature: float | None = None
    """0 is greedy; None: that of the checkpoint's own evaluation."""
    seed: int | None = None
    """Makes sampled episodes repeatable; None: each is another."""

    def set_benchmark(self, benchmark: Any, demo_mode: bool) -> None:
        """Nothing depends on it (AgentLab calls this)."""

    def set_reproducibility_mode(self) -> None:
        """Greedy answers (AgentLab calls this)."""
        self.temperature = 0.0

    def make_agent(self) -> WebrlAgent:
        """An agent for one episode.

        Raises:
            UsageError: another server than `webrl serve-model`, another model, or one that reads other pages.
            openai.APIError: no server, or another token.
        """
        return WebrlAgent(self)


class WebrlAgent(Agent):
    """Plays one episode."""

    def __init__(self, args: WebrlAgentArgs) -> None:
        import openai

        # Never OPENAI_API_KEY: it is not for this server. Nor is a proxy of the environment for one on this machine.
        key = os.environ.get(MODEL_TOKEN) or "none"
        is_here = is_loopback(urlsplit(args.base_url).hostname or "")
        http = openai.DefaultHttpxClient(trust_env=not is_here)
        self._client = openai.OpenAI(base_url=args.base_url, api_key=key, http_client=http)
        self._args = args
        self._model, self._settings = self._find_model()
        self._history: list[dict[str, str]] = []
        self._pages: list[str] = []
        self._said_last = False
        # All actions of the checkpoint's action language; one call per line.
        self.action_set = HighLevelActionSet(["chat", "infeas", "bid", "nav", "tab", "coord"], multiaction=True)

    def obs_preprocessor(self, obs: dict[str, Any]) -> dict[str, Any]:
        """Replace the trees of an observation with the page as text."""
        text = flatten_axtree_to_str(obs["axtree_object"], **_PAGE_TEXT)
        rest = {key: value for key, value in obs.items() if key not in ("axtree_object", "dom_object")}
        return rest | {"axtree_txt": text}

    def get_action(self, obs: dict[str, Any]) -> tuple[str | None, AgentInfo]:
        """The next action, or None where a stop rule ends the episode. Raises openai.APIError."""
        if self._history and not self._history[-1]["error"]:
            self._history[-1]["error"] = obs["last_action_error"]
        if reason := self._stop_reason():
            return None, AgentInfo(think=reason)
        body: dict[str, Any] = {"model": self._model, "goal": obs["goal"], "observation": obs["axtree_txt"]}
        body["history"] = self._history
        if self._args.temperature is not None:
            body["temperature"] = self._args.temperature
        if self._args.seed is not None:
            body["seed"] = self._args.seed + len(self._history)
        answer: Any = self._client.post("/actions", body=body, cast_to=object)
        self._history.append({"response": answer["text"], "action": answer["action"], "error": answer["error"]})
        self._pages.append(obs["axtree_txt"])
        self._said_last = any(call.startswith(_LAST_WORDS) for call in answer["calls"])
        info = AgentInfo(think=answer["text"], stats=answer["usage"], extra_info=answer)
        return "\n".join(answer["calls"]) or _NOTHING, info

    def _find_model(self) -> tuple[str, dict[str, Any]]:
        """Name and settings of the model. Raises UsageError."""
        served = {model.id: model for model in self._client.models.list()}
        wanted = self._args.model
        if wanted is not None and wanted not in served:
            raise UsageError(f"model {wanted!r} is not served at {self._args.base_url}; served: {', '.join(served)}")
        model = served[wanted] if wanted is not None else next(iter(served.values()), None)
        settings = getattr(model, "webrl", None)
        if model is None or not isinstance(settings, dict):
            raise UsageError(
                f"{self._args.base_url} does not say how the model's prompts are made: it is not `webrl serve-model`"
            )
        if settings["observation"] == "html":
            raise UsageError(
                f"model {model.id!r} reads pages as simplified HTML, which BrowserGym's observations are not"
            )
        return model.id, settings

    def _stop_reason(self) -> str:
        """Why training would end the episode here, or ""."""
        if self._said_last and not self._history[-1]["error"]:
            return "the agent has given its answer"
        answers = [step["action"] for step in self._history]
        unread, equal = self._settings["max_parse_failures"], self._settings["max_repeats"]
        if len(answers) >= unread and not any(answers[-unread:]):
            return f"{unread} unreadable answers in a row"
        last = set(zip(answers[-equal:], self._pages[-equal:], strict=True))
        if len(answers) >= equal and answers[-1] and len(last) == 1:
            return f"{equal} equal actions in a row"
        return ""
