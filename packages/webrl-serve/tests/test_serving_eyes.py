"""`webrl serve-model` of a model that sees: pictures in chats and actions, and what is refused."""

import asyncio
import base64
import struct
import zlib

import httpx
import pytest
from eyes_builders import png
from llm_builders import PAGE, save_tiny_model

from webrl.config import load_config
from webrl.errors import ModelError, UsageError
from webrl.llm import open_model, open_policy
from webrl.llm.interface import Message, Sampling, Turn
from webrl.llm.pictures import shrink
from webrl_serve.model.app import Service, make_app
from webrl_serve.model.checkpoint import check_context, find_checkpoint

SEEING = ["rollout.screenshots=true", "rollout.image_size=96", "models.max_prompt_tokens=1500", "models.device=cpu"]
SEEING += ["rollout.max_new_tokens=12", "evaluate.temperature=0"]
LARGE = png(size=(400, 200), dot=40)
URL = "data:image/png;base64," + base64.b64encode(LARGE).decode()
TEXT = {"type": "text", "text": "Click the button."}
PICTURE = {"type": "image_url", "image_url": {"url": URL}}
CHAT = {"model": "vlm", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def folder(vlm):
    return str(vlm)


def ask_all(folder, *requests):
    """(answers of the served folder, what the model itself answers to the chat and to the page)."""
    config = load_config("demo", SEEING)

    async def ask():
        async with open_model(folder, config.rollout.engine, config.models, sees=True) as model:
            app = make_app(Service(model, "vlm", config, 2048))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
                return [await http.post(f"/v1/{path}", json=body) for path, body in requests]

    return asyncio.run(ask())


def test_a_chat_and_a_page_with_a_picture_are_answered_as_by_the_model_itself(folder):
    messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": [PICTURE, TEXT]}]
    page = {"model": "vlm", "goal": "Go.", "observation": PAGE, "screenshot": URL, "seed": 1}
    chat, action = ask_all(folder, ("chat/completions", CHAT | {"messages": messages}), ("actions", page))
    config, shown = load_config("demo", SEEING), shrink(LARGE, 96)

    async def own():
        async with open_model(folder, config.rollout.engine, config.models, sees=True) as model:
            said = [Message("system", "Act."), Message("user", "Click the button.")]
            ids = model.eyes.encode(said, model.eyes.look(shown))
            answer = await model.generate(ids, Sampling(max_new_tokens=12, temperature=0), shown)
        async with open_policy(folder, config, temperature=0) as policy:
            return answer, await policy.act(Turn("Go.", (), PAGE, seed=1, screenshot=shown))

    answer, output = asyncio.run(own())
    assert chat.json()["choices"][0]["message"]["content"] == answer.text
    assert chat.json()["usage"]["prompt_tokens"] == len(answer.prompt_ids)
    assert action.json()["text"] == output.text
    assert action.json()["usage"]["prompt_tokens"] == len(output.prompt_ids)


def data_url(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


def blank(width, height):
    """A PNG of this size in its head, without pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_requests_without_screenshot_and_unreadable_or_huge_images_are_refused_by_name(folder):
    def chat(*contents):
        return "chat/completions", CHAT | {"messages": [{"role": "user", "content": content} for content in contents]}

    def image(url):
        return chat([{"type": "image_url", "image_url": {"url": url}}, TEXT])

    page = {"model": "vlm", "goal": "Go.", "observation": PAGE}
    cases = [
        (chat("Go."), "every request needs a picture: there is none in messages"),
        (("actions", page), "every request needs a picture: there is none in screenshot"),
        (("completions", {"model": "vlm", "prompt": "Go."}), "a plain completion has no place for one"),
        (chat([PICTURE, TEXT], "and now?"), "at most one picture is accepted, at the start of the last user message"),
        (chat([PICTURE | {"image_url": {"url": URL, "detail": "low"}}, TEXT]), "only text is accepted here"),
        (image("https://example.org/a.png"), "found 'https://example.org/a.png'"),
        (image("data:image/png;base64,aGk="), "not a readable image"),
        (("actions", page | {"screenshot": "aGk="}), "a picture is 'data:image/png;base64,…' (or jpeg), found 'aGk='"),
        (image(data_url(LARGE + b" " * (4 << 20))), "bytes; at most 4194304 are accepted"),
        (image(data_url(blank(4097, 4096))), "the picture has 4097x4096 pixels; at most 16777216 are accepted"),
    ]
    for (_, expected), answer in zip(cases, ask_all(folder, *(request for request, _ in cases)), strict=True):
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] is None or error["param"].startswith(("messages", "screenshot", "prompt"))
        assert expected in error["message"]
        assert len(error["message"]) < 500


def test_a_checkpoint_that_sees_is_served_where_the_settings_say_in_which_size(folder, tmp_path):
    assert check_context(find_checkpoint(folder, overrides=SEEING)) == 2048
    with pytest.raises(ModelError, match=r"would see only the page's text: set rollout.image_size"):
        find_checkpoint(folder)
    with pytest.raises(UsageError, match=r"rollout.engine.kind=vllm: not yet with rollout.image_size"):
        find_checkpoint(folder, overrides=[*SEEING, "rollout.engine.kind=vllm"])
    with pytest.raises(ModelError, match=r"rollout.image_size=96: model .* has no vision"):
        find_checkpoint(str(save_tiny_model(tmp_path / "text")), overrides=SEEING)
