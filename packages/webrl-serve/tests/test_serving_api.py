"""`webrl serve-model` through OpenAI's own client: what is answered, what is refused, and to whom."""

import asyncio
import json
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from llm_builders import PAGE, save_tiny_model
from served import served

from webrl.config import load_config
from webrl.llm.interface import Message, Sampling, Turn
from webrl.llm.local.model import LocalModel
from webrl.llm.policy import ModelPolicy
from webrl.llm.tokens import encode_chat
from webrl.types import Step
from webrl_serve.model.app import Service, describe_answer, make_app, refuse
from webrl_serve.net import Access

ACTOR = "data/tiny/actor"
GOAL = 'Click on the "OK" button.'
ASK = {"model": "actor", "messages": [{"role": "user", "content": GOAL}], "max_tokens": 12, "temperature": 0}
PICTURE = (  # of one pixel
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
BUTTONS = {"12": "OK", "13": "Cancel", "14": "Next", "15": "Submit", "16": "Yes", "17": "No"}
CONFIG = load_config("demo", ["evaluate.temperature=0"])


@pytest.fixture(scope="module")
def url():
    with served(["serve-model", ACTOR, "demo", "--port", "0"], r"serving actor on (\S+)\n") as (address, process):
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model():
    model = LocalModel(ACTOR, CONFIG.rollout.engine, CONFIG.models)
    yield model
    asyncio.run(model.close())


def refusal(client, **changes):
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**ASK | changes)
    return caught.value


def test_a_chat_is_answered_through_the_models_template(client, model):
    messages = [Message("user", "Wait."), Message("assistant", "noop()"), Message("user", f"{GOAL}\n{PAGE}")]
    expected = asyncio.run(model.chat(messages, Sampling(temperature=0, max_new_tokens=12)))
    chat = [{"role": m.role, "content": m.content} for m in messages]
    answer = client.chat.completions.create(**ASK | {"messages": chat}, n=1, frequency_penalty=0, logprobs=False)
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    used = answer.usage
    assert (used.prompt_tokens, used.completion_tokens) == (len(expected.prompt_ids), len(expected.ids))
    chat[2]["content"] = [{"type": "text", "text": GOAL}, {"type": "text", "text": PAGE}]
    in_parts = client.chat.completions.create(**ASK | {"messages": chat})
    assert in_parts.choices[0].message.content == expected.text


def test_a_seed_repeats_an_answer(client):
    ask = {**ASK, "temperature": 1.0}
    first, again = (client.chat.completions.create(**ask, seed=5).choices[0].message.content for _ in range(2))
    assert first == again
    others = {client.chat.completions.create(**ask).choices[0].message.content for _ in range(8)}
    assert len(others) > 1


def test_text_and_its_token_ids_are_continued_alike(client, model):
    text = "click('"
    ids = model.tokenizer(text)["input_ids"]
    of_text = client.completions.create(model="actor", prompt=text, temperature=0)
    of_ids = client.completions.create(model="actor", prompt=ids, temperature=0)
    expected = asyncio.run(model.generate(ids, Sampling(temperature=0, max_new_tokens=16)))
    assert of_text.choices[0].text == of_ids.choices[0].text == expected.text
    assert of_ids.usage.total_tokens == len(ids) + len(expected.ids)


def test_an_answer_ends_before_a_stop_text(client):
    whole = client.chat.completions.create(**ASK).choices[0].message.content
    stop = whole[3:5]
    answer = client.chat.completions.create(**ASK, stop=["not in it at all", stop])
    assert answer.choices[0].message.content == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.quick
def test_an_action_comes_from_the_prompt_of_training(client, model):
    page = PAGE + "\n".join(f"\t[{i}] StaticText 'line {i} of a page that does not fit'" for i in range(20, 400))
    past = {"response": "click('99')", "action": "click('99')", "error": "ValueError: no element 99"}
    steps = (Step(index=0, observation="", **past),)
    expected = asyncio.run(ModelPolicy(model, CONFIG, temperature=1.0).act(Turn(GOAL, steps, page, seed=5)))
    assert expected.observation_shown != page
    body = {"model": "actor", "goal": GOAL, "observation": page, "history": [past], "temperature": 1.0, "seed": 5}
    answer = client.post("/actions", body=body, cast_to=object)
    assert answer["text"] == expected.text
    assert answer["usage"]["prompt_tokens"] == len(expected.prompt_ids)
    assert describe_answer(expected.text, "browsergym").items() <= answer.items()


def test_an_answer_becomes_browsergyms_calls_whatever_language_it_is_in():
    read = describe_answer("<think>OK is 12</think>click(bid='12')", "browsergym")
    assert read == {"action": "click('12')", "note": "", "calls": ["click('12')"], "error": ""}
    read = describe_answer('do(action="Search", argument="it\'s", element="4")', "webrl")
    assert read.pop("calls") == ["fill('4', \"it's\")", "press('4', 'Enter')"]
    assert read == {"action": "do(action='Search', argument=\"it's\", element='4')", "note": "", "error": ""}
    unread = describe_answer("I click on it", "browsergym")
    assert (unread["action"], unread["calls"]) == ("", [])
    assert "Not an action" in unread["error"]


def test_the_model_says_how_it_is_to_be_asked(client):
    (card,) = client.models.list().data
    assert (card.id, card.max_model_len) == ("actor", 4096)
    assert card.webrl["observation"] == "axtree"
    assert card.webrl["prompt_format"] == "chat"
    assert card.webrl["max_parse_failures"] == CONFIG.rollout.max_parse_failures
    assert client.models.retrieve("actor").id == "actor"
    with pytest.raises(openai.NotFoundError, match="'gpt-4' is not served; 'actor' is"):
        client.models.retrieve("gpt-4")


def said(part):
    return {"messages": [{"role": "user", "content": [part]}]}


def shown(url):
    return said({"type": "image_url", "image_url": {"url": url}})


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"n": 2}, "n", "n=2: this server does not do that"),
        ({"stream": True}, "stream", "stream=True"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "logit_bias="),
        ({"response_format": {"type": "json_object"}}, "response_format", "response_format.type='json_object'"),
        ({"extra_body": {"min_p": 0.1}}, "min_p", "unknown parameter 'min_p'"),
        ({"temperature": 1e-9}, "temperature", "0 is greedy"),
        ({"max_completion_tokens": 7}, None, "max_tokens=12 and max_completion_tokens=7 differ"),
        ({"stop": ["a"] * 5}, "stop", "at most 4 texts"),
        (shown("x"), "messages.0.content", "a picture is 'data:image/png;base64,…' (or jpeg), found 'x'"),
        (said({"type": "input_audio", "input_audio": {}}), "messages.0.content", "only text is accepted here"),
        (shown(PICTURE), "messages", "the served model reads text only: leave the picture out"),
        (
            {"messages": [*ASK["messages"], {"role": "system", "content": "Press Cancel."}]},
            "messages.1",
            "messages.1: this model's chat template leaves system messages out; say it in a user message",
        ),
    ],
)
def test_what_is_not_done_or_not_understood_is_refused_by_name(client, changes, param, message):
    error = refusal(client, **changes)
    assert error.status_code == 400
    assert error.type == "invalid_request_error"
    assert error.param == param
    assert message in error.body["message"]


def test_several_prompts_and_ids_outside_the_vocabulary_are_refused(client):
    for prompt, message in ((["a", "b"], "several prompts"), ([5, 10**6], "outside the vocabulary"), ("", "is empty")):
        with pytest.raises(openai.BadRequestError, match=message) as caught:
            client.completions.create(model="actor", prompt=prompt)
        assert caught.value.param == "prompt"


def test_a_prompt_that_does_not_fit_is_refused_with_its_length(client, model):
    long = [{"role": "user", "content": "again " * 6000}]
    length = len(encode_chat(model.tokenizer, [Message("user", long[0]["content"])]))
    assert length > 4096
    error = refusal(client, messages=long, max_tokens=openai.NOT_GIVEN)
    assert (error.status_code, error.code) == (400, "context_length_exceeded")
    assert f"4096 tokens at most; the prompt has {length}" in error.body["message"]
    error = refusal(client, max_tokens=4095)
    assert "an answer of up to 4095" in error.body["message"]
    body = {"model": "actor", "goal": "again " * 3000, "observation": PAGE}
    with pytest.raises(openai.BadRequestError, match="more than max_prompt_tokens=1200") as caught:
        client.post("/actions", body=body, cast_to=object)
    assert caught.value.code == "context_length_exceeded"


def test_bodies_that_cannot_be_read_are_refused_in_openais_form(url):
    chat, plain = f"{url}/chat/completions", httpx.Client(timeout=120, trust_env=False)
    lone = json.dumps(ASK).replace(GOAL[:5], "\\ud800")
    for body in ("", "{", "[]", "[" * 100_000, lone, json.dumps(ASK).replace('"temperature": 0', '"temperature": NaN')):
        answer = plain.post(chat, content=body)
        assert answer.status_code == 400, body[:80]
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert plain.get(chat).status_code == 405
    assert "/v1/chat/completions" in plain.get(f"{url}/nothing").json()["error"]["message"]


def test_requests_at_once_get_the_answers_to_their_own_pages(client):
    def act(bid):
        goal = f'Click on the "{BUTTONS[bid]}" button.'
        page = f"RootWebArea 'Test', focused\n\t[{bid}] button '{BUTTONS[bid]}'"
        body = {"model": "actor", "goal": goal, "observation": page, "temperature": 0}
        return client.post("/actions", body=body, cast_to=object)["calls"]

    with ThreadPoolExecutor(len(BUTTONS)) as threads:
        assert list(threads.map(act, BUTTONS)) == [[f"click('{bid}')"] for bid in BUTTONS]


def test_a_prompt_of_megabytes_keeps_nobody_else_waiting(model):
    long = "again " * 100_000
    chat = {"model": "actor", "messages": [{"role": "user", "content": long}]}
    app = make_app(Service(model, "actor", CONFIG, 4096))

    async def ask(path, body):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            refused = asyncio.ensure_future(http.post(path, json=body))
            for _ in range(10):
                await asyncio.sleep(0)
                assert (await http.get("/health")).status_code == 200
                assert not refused.done(), f"{path} was answered between two requests"
            return (await refused).json()["error"]["code"]

    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"model": "actor", "prompt": long}),
        ("/v1/actions", {"model": "actor", "goal": long, "observation": PAGE}),
    ):
        assert asyncio.run(ask(path, body)) == "context_length_exceeded"


def post(app, path, body, **headers):
    """What an application answers, without a network."""

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as http:
            return await http.post(path, json=body, headers=headers)

    return asyncio.run(ask())


def test_a_body_that_is_too_large_is_refused(model, monkeypatch):
    monkeypatch.setattr("webrl_serve.model.app.MAX_BODY_BYTES", 64)
    answer = post(make_app(Service(model, "actor", CONFIG, 4096)), "/v1/chat/completions", ASK)
    assert (answer.status_code, answer.json()["error"]["message"]) == (413, "a body has at most 64 bytes")


def test_whoever_lacks_the_token_and_web_pages_are_refused_before_the_body_is_read(model):
    app = make_app(Service(model, "actor", CONFIG, 4096))
    locked, path = Access(app, "secret", refuse), "/v1/chat/completions"
    assert post(locked, path, ASK, Authorization="Bearer secret").status_code == 200
    assert post(locked, "/health/", {}).status_code == 307
    answer = post(locked, path, ASK, Authorization="Bearer wrong")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert post(Access(app, None, refuse), path, ASK, Origin="http://evil.example").status_code == 403

    async def never():
        raise AssertionError("the body was asked for")

    async def drop(message):
        pass

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"127.0.0.1")]}
    asyncio.run(locked(scope, never, drop))


def test_a_model_without_a_chat_template_answers_no_chats_and_says_why(tmp_path):
    folder = save_tiny_model(tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    bare = LocalModel(str(folder), CONFIG.rollout.engine, CONFIG.models)
    app = make_app(Service(bare, "actor", CONFIG, 1024))
    try:
        error = post(app, "/v1/chat/completions", ASK)
        assert error.status_code == 400
        assert "has no chat template" in error.json()["error"]["message"]
        text = post(app, "/v1/completions", {"model": "actor", "prompt": "click(", "max_tokens": 3, "temperature": 0})
        assert text.json()["usage"]["completion_tokens"] == 3
    finally:
        asyncio.run(bare.close())


@pytest.mark.parametrize(
    ("path", "body", "is_whole"),
    [
        ("chat/completions", b"{", False),
        ("completions", b'{"model": "actor", "prompt": [9], "max_tokens": 4000}', True),
    ],
)
def test_a_request_whose_client_hangs_up_in_its_midst_or_before_its_answer_is_given_up(model, path, body, is_whole):
    sent = []
    parts = [{"type": "http.request", "body": body, "more_body": not is_whole}, {"type": "http.disconnect"}]

    async def ask():
        scope = {"type": "http", "method": "POST", "path": f"/v1/{path}", "headers": [], "query_string": b""}
        scope |= {"http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 1)}
        app = make_app(Service(model, "actor", CONFIG, 4096 if is_whole else None))
        await app(scope, lambda: asyncio.sleep(0, parts.pop(0)), lambda message: asyncio.sleep(0, sent.append(message)))

    asyncio.run(ask())
    assert [message.get("status") for message in sent] == [499, None], "not 200: nobody has waited for 4000 tokens"
