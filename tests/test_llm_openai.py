"""The OpenAI-compatible engine against a real server on loopback, and every way that server can fail."""

import asyncio
import contextlib
import logging
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from curriculum_builders import ChatServer
from llm_builders import score
from llm_loopback import LoopbackServer

from webrl.config import EngineConfig, ModelsConfig, RunConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm import Message, Sampling, Turn, open_model
from webrl.llm.policy import ModelPolicy
from webrl.llm.servers.http_pool import HttpPool, MalformedAnswer
from webrl.llm.servers.openai import parse_completion

PROMPT = [0, 17, 42, 99, 12]
SAMPLING = Sampling(max_new_tokens=10, seed=3)


def run(tiny_model, use, *, servers=1, name=None, timeout_s=10.0, max_retries=3, engine=None, **server):
    """Open the folder in process, serve it on `servers` loopback ports, give `use` a client and the servers."""

    async def main():
        local = EngineConfig(num_threads=1)
        async with open_model(str(tiny_model), local, ModelsConfig(device="cpu", dtype="float32")) as model:
            running = [LoopbackServer(model, **server) for _ in range(servers)]
            async with contextlib.AsyncExitStack() as stack:
                for one in running:
                    await stack.enter_async_context(one.running())
                urls = tuple(s.url for s in running)
                config = EngineConfig(
                    kind="openai", urls=urls, timeout_s=timeout_s, max_retries=max_retries, **(engine or {})
                )
                async with open_model(name or str(tiny_model), config, ModelsConfig()) as client:
                    for one in running:
                        one.bodies.clear()
                    return await use(client, model, *running)

    return asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("token_list", [True, False])
def test_ids_and_logprobs_come_through_exactly_and_nothing_is_left_to_the_servers_own_settings(tiny_model, token_list):
    async def both(client, local, server):
        remote = await client.generate(PROMPT, SAMPLING)
        return remote, await local.generate(PROMPT, SAMPLING), server.bodies[-1]

    remote, local, body = run(tiny_model, both, token_list=token_list)
    assert remote == local
    assert remote.logprobs == pytest.approx(score(tiny_model, PROMPT, remote.ids), abs=1e-4)
    settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 3}
    assert body | settings | {"stop_token_ids": [3]} == body


def test_choices_are_scored_whether_or_not_they_are_among_the_top_tokens(tiny_model):
    async def ask(client, local, server):
        tokens = list(range(0, 300, 60))
        return await client.choice_logprobs(PROMPT, tokens), await local.choice_logprobs(PROMPT, tokens), server.bodies

    remote, local, bodies = run(tiny_model, ask)
    assert remote == pytest.approx(local, abs=1e-5)
    assert any("prompt_logprobs" in body for body in bodies)


@pytest.mark.parametrize("fault", ["500", "503", "429", "drop", "hang", "trickle", "malformed", "no_choices", "packed"])
def test_one_failure_is_retried_and_the_answer_is_the_same(tiny_model, fault):
    async def ask(client, local, server):
        server.faults.append(fault)
        answer = await client.generate(PROMPT, SAMPLING)
        return answer, await local.generate(PROMPT, SAMPLING), len(server.bodies)

    answer, expected, num_requests = run(tiny_model, ask, timeout_s=2.0 if fault in ("hang", "trickle") else 10.0)
    assert answer == expected
    assert num_requests == 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("500", "500.*told to answer 500"),
        ("drop", "RemoteProtocolError|ReadError"),
        ("hang", "no answer within 0.3 s"),
        ("trickle", "no answer within 0.3 s"),
        ("malformed", "malformed JSON"),
        ("no_choices", "malformed answer: no choices"),
        ("packed", "DecodingError: .*decompressing"),
    ],
)
def test_lasting_failure_is_a_policy_error_that_says_what_happened(tiny_model, fault, message):
    async def ask(client, local, server):
        server.faults.extend([fault] * 5)
        with pytest.raises(PolicyError, match=f"no answer after 2 attempts: http.*{message}"):
            await client.generate(PROMPT, SAMPLING)

    run(tiny_model, ask, max_retries=1, timeout_s=0.3 if fault in ("hang", "trickle") else 10.0)


def test_requests_spread_over_servers_a_refused_one_is_not_retried_and_a_failing_server_is_rested(tiny_model):
    async def ask(client, local, first, second):
        first.faults.append("400")
        second.faults.append("400")
        with pytest.raises(PolicyError, match="told to answer 400"):
            await client.generate(PROMPT, SAMPLING)
        assert len(first.bodies) + len(second.bodies) == 1
        for server in (first, second):
            server.faults.clear()
            server.bodies.clear()
        await asyncio.gather(*[client.generate(PROMPT, SAMPLING) for _ in range(8)])
        spread = len(first.bodies), len(second.bodies)
        first.faults.extend(["500"] * 100)
        answers = [await client.generate(PROMPT, SAMPLING) for _ in range(6)]
        return spread, len(first.bodies) - spread[0], answers

    spread, num_to_failing, answers = run(tiny_model, ask, servers=2)
    assert spread == (4, 4)
    assert num_to_failing <= 2
    assert len(answers) == 6


def test_a_chat_only_server_answers_chat_and_refuses_ids(tiny_model):
    messages = [Message("user", "hello")]

    async def ask(client, local, server):
        with pytest.raises(ModelError, match="supports only chat"):
            await client.generate(PROMPT, SAMPLING)
        policy = ModelPolicy(client, RunConfig(rollout={"max_new_tokens": 5}, models={"prompt": "brief"}))
        output = await policy.act(Turn("Click", (), "PAGE", seed=1))
        assert (output.prompt_ids, output.action_ids, output.observation_shown) == ((), (), "PAGE")
        with pytest.raises(PolicyError, match="cannot be trained on"):
            ModelPolicy(client, RunConfig(), training=True)
        return await client.chat(messages, SAMPLING), await local.chat(messages, SAMPLING)

    remote, local = run(tiny_model, ask, chat_only=True)
    assert remote.text == local.text
    assert remote.ids == ()


def test_a_hosted_model_without_tokenizer_answers_chat(tiny_model):
    async def ask(client, local, server):
        assert client.tokenizer is None
        assert client.name == client.served_name  # lineage and labels must not name a model that was not asked
        return await client.chat([Message("user", "hello")], SAMPLING)

    assert isinstance(run(tiny_model, ask, name="gpt-test").text, str)


class Foreign(ChatServer):
    """Lists `models`, and answers a chat with `choice`, or refuses its system role."""

    def __init__(self, models=("writer",), choice=None, refuses=False, longest=100):
        super().__init__(lambda user, number: "")
        self.models, self.choice, self.refuses, self.longest, self.asked = models, choice, refuses, longest, []

    async def _models(self, request):
        return web.json_response(
            {"error": "Unexpected endpoint"} if self.models is None else {"data": [{"id": m} for m in self.models]}
        )

    async def _chat(self, request):
        messages = (await request.json())["messages"]
        self.asked.append([m["role"] for m in messages])
        if self.refuses and messages[0]["role"] == "system":
            return web.json_response({"message": "System role not supported"}, status=400)
        if len(messages[-1]["content"]) > self.longest:
            return web.json_response({"message": f"too long: {messages}"}, status=400)
        content = {"message": {"content": messages[-1]["content"]}, "finish_reason": "stop"}
        return web.json_response({"choices": [self.choice or content]})

    def ask(self, name="no-such-tokenizer", *, times=1):
        async def main():
            async with self.running():
                engine = EngineConfig(kind="openai", urls=(self.url,), max_retries=0, timeout_s=20)
                async with open_model(name, engine, ModelsConfig()) as client:
                    chat = [Message("system", "be brief"), Message("user", "hello")]
                    return [await client.chat(chat, SAMPLING) for _ in range(times)], client

        return asyncio.run(main())


def test_of_several_served_models_none_is_guessed():
    with pytest.raises(ModelError, match=r"/models lists embedder, writer; set engine\.model_name"):
        Foreign(("embedder", "writer")).ask()
    assert Foreign(("embedder", "ann/writer")).ask("ann/writer")[1].served_name == "ann/writer"
    with pytest.raises(ModelError, match=r"lists no model: .*Unexpected endpoint.*does engine\.urls end in /v1\?"):
        Foreign(None).ask()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"message": {"content": "cli"}, "finish_reason": "abort"}, "cut the answer off .finish_reason='abort'"),
        ({"message": {"content": ""}, "finish_reason": "content_filter"}, "finish_reason='content_filter'"),
        ({"message": {"content": None}, "finish_reason": "stop"}, "no message content"),
    ],
)
def test_an_answer_that_a_server_broke_off_is_a_failure_and_no_answer(choice, message):
    with pytest.raises(PolicyError, match=message):
        Foreign(choice=choice).ask()


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS", "model_length", "max_output_tokens"])
def test_an_answer_that_is_all_reasoning_is_an_empty_one_and_cut_off_in_any_servers_words(reason):
    message = {"content": None, "reasoning_content": "The user wants"}
    (answer,), _ = Foreign(choice={"message": message, "finish_reason": reason}).ask()
    assert (answer.text, answer.finish_reason) == ("", "length")


def test_where_a_servers_template_refuses_the_system_role_its_text_goes_before_the_users():
    server = Foreign(refuses=True)
    answers, _ = server.ask(times=2)
    assert [answer.text for answer in answers] == ["be brief\n\nhello"] * 2
    assert server.asked == [["system", "user"], ["user"], ["user"]]


def test_an_error_that_quotes_the_system_role_does_not_change_later_chats():
    server = Foreign(longest=10)

    async def main():
        async with server.running():
            engine = EngineConfig(kind="openai", urls=(server.url,), max_retries=0, timeout_s=20)
            async with open_model("no-such-tokenizer", engine, ModelsConfig()) as client:
                with pytest.raises(PolicyError, match="too long"):
                    await client.chat([Message("system", "be brief"), Message("user", "hello" * 9)], SAMPLING)
                return await client.chat([Message("system", "be brief"), Message("user", "hello")], SAMPLING)

    assert asyncio.run(main()).text == "hello"
    assert server.asked[-1] == ["system", "user"]


@pytest.mark.parametrize("value", [float("nan"), 3.5, -float("inf")])
def test_what_is_no_log_probability_is_never_recorded(value):
    choice = {"logprobs": {"token_logprobs": [-0.5, value]}, "token_ids": [5, 6], "finish_reason": "stop"}
    with pytest.raises(MalformedAnswer, match=f"{value} is not a log-probability"):
        parse_completion({"choices": [choice]})


class Newer(ChatServer):
    """Refuses `max_tokens`: the first requests, when so many of them have arrived."""

    def __init__(self, first):
        super().__init__(lambda user, number: "")
        self.all_in, self.refused = asyncio.Barrier(first), 0

    async def _chat(self, request):
        body = await request.json()
        if "max_tokens" in body:
            self.refused += 1
            await self.all_in.wait()
            message = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
            return web.json_response({"error": {"message": message}}, status=400)
        content = str(body["max_completion_tokens"])
        return web.json_response({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})


@pytest.mark.parametrize("in_flight", [1, 8])
def test_requests_in_flight_when_a_server_asks_for_max_completion_tokens_are_asked_again(in_flight):
    async def main():
        server = Newer(in_flight)
        async with server.running(), server.model() as client:
            asked = [client.chat([Message("user", str(i))], SAMPLING) for i in range(in_flight)]
            answers = await asyncio.gather(*asked)
            answers.append(await client.chat([Message("user", "later")], SAMPLING))
        assert server.refused == in_flight, "what comes later asks rightly at once"
        return [answer.text for answer in answers]

    assert asyncio.run(main()) == ["10"] * (in_flight + 1)


ANSWER = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{"a":1}'


@asynccontextmanager
async def server(answers_per_connection):
    """Answers so many requests of a connection, then closes it when the next one arrives; counts its connections."""
    seen = {"connections": 0, "dropped": 0}

    async def serve(reader, writer):
        seen["connections"] += 1
        answered = 0
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
            await reader.readexactly(length)
            if answered == answers_per_connection:
                seen["dropped"] += 1
                break
            writer.write(ANSWER)
            await writer.drain()
            answered += 1
        writer.close()

    async def quietly(reader, writer):
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    listener = await asyncio.start_server(quietly, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", seen


def ask(answers_per_connection, rounds, max_retries):
    async def main():
        async with server(answers_per_connection) as (url, seen):
            pool = HttpPool([url], timeout_s=30, max_retries=max_retries)
            try:
                for width in rounds:
                    await asyncio.gather(*[pool.ask("/x", {}, lambda answer: answer["a"]) for _ in range(width)])
            finally:
                await pool.close()
        return seen

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("rounds", [(1, 1, 1), (8, 8)])
def test_a_kept_connection_that_the_server_has_dropped_is_replaced_without_a_word(rounds, caplog):
    with caplog.at_level(logging.WARNING, "webrl"):
        seen = ask(1, rounds, max_retries=0)
    assert seen["dropped"] > 0
    assert caplog.text == ""


def test_a_fresh_connection_that_is_dropped_is_a_failure(caplog):
    with caplog.at_level(logging.WARNING, "webrl"), pytest.raises(PolicyError, match="RemoteProtocolError"):
        ask(0, (1,), max_retries=1)
    assert caplog.text.count("failed") == 2


def test_connections_are_kept_and_used_again():
    assert ask(100, (8, 8, 3, 8), max_retries=0)["connections"] == 8
