"""Beside the sites: the reset service, and a judge that speaks OpenAI's protocol."""

import json
import re
import time
from collections.abc import Iterable

from .server import Request, Response, Site, as_json, route


class ResetService(Site):
    """`/reset` and `/status` as in BrowserGym's instance scripts."""

    name = "reset"

    def __init__(self, sites: Iterable[Site], polls: int = 1) -> None:
        self.sites = list(sites)
        self.polls = polls
        self.left: int | None = None
        self.num_resets = 0
        super().__init__()

    @route("GET", r"/reset")
    def start_reset(self, request: Request) -> Response:
        if self.left is not None:
            return Response("Reset already running", 418, content_type="text/plain")
        self.left = self.polls
        for site in self.sites:
            site.reset()
        return Response("Reset started", content_type="text/plain")

    @route("GET", r"/status")
    def status(self, request: Request) -> Response:
        if self.left is None:
            return Response("Ready for duty!", content_type="text/plain")
        if self.left > 0:
            self.left -= 1
            return Response("Reset running", content_type="text/plain")
        self.left = None
        self.num_resets += 1
        return Response("Ready for duty!", content_type="text/plain")


class Judge(Site):
    """Compares words: an answer is correct if it holds every number and half of the words of the reference."""

    name = "judge"

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.reply: str | None = None
        self.seconds = 0.0
        super().__init__()

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    @route("GET", r"/v1/models")
    def models(self, request: Request) -> Response:
        return as_json({"data": [{"id": "stand-in-judge"}]})

    @route("POST", r"/v1/chat/completions")
    def chat(self, request: Request) -> Response:
        time.sleep(self.seconds)
        question = json.loads(request.data)["messages"][-1]["content"]
        self.questions.append(question)
        answer = self.reply if self.reply is not None else self._grade(question)
        return as_json({"choices": [{"message": {"role": "assistant", "content": answer}}]})

    @staticmethod
    def _grade(question: str) -> str:
        if "actual unachievable reason" in question:
            same = words(part(question, "actual unachievable reason")) & words(
                part(question, "reported unachievable reason")
            )
            return "same" if len(same) >= 2 else "different"
        wanted, given = words(part(question, "reference answer")), words(part(question, "student answer"))
        numbers = {word for word in wanted if word[0].isdigit()}
        return "correct" if wanted and numbers <= given and len(wanted & given) >= len(wanted) / 2 else "incorrect"


def part(question: str, name: str) -> str:
    match = re.search(rf"{name}: (.*?)\n(?:all the string|Conclude|reported|The task described)", question, re.DOTALL)
    return match.group(1) if match else ""


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))
