"""Serving public clients: images, pruned HTML, elements, action aliases, HTTP episodes, places, variables."""

import asyncio
import base64
import contextlib
import io
import json
import re
import socket
import threading
import time

import httpx
import numpy as np
import pytest
from grpo_builders import with_server
from openenv_builders import client
from PIL import Image
from rollouts_builders import bid_of, in_browser, miniwob
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.pool import EnvPool
from webrl_serve.openenv.client import RemotePool
from webrl_serve.openenv.details import describe
from webrl_serve.openenv.messages import AtCapacity, as_json, encode
from webrl_serve.openenv.server import HttpSessions, make_app
from webrl_serve.openenv.session import EPISODE_OVER, Hub, ServerOptions, Session, read_options

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shared(servers):
    with servers.open(num_sessions=6, viewport=(320, 240)) as url:
        yield url


def pixels(screenshot):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(screenshot))).convert("RGB"))


def test_lists_and_png_show_the_same_pixels_and_nobody_is_blind_who_asks_for_nothing(shared):
    with client(shared) as env:
        lists = env.reset(task_name="click-button", seed=3).observation["screenshot"]
        assert np.shape(lists) == (240, 320, 3)
        png = env.reset(task_name="click-button", seed=3, screenshots="png").observation["screenshot"]
        assert (pixels(png) == np.asarray(lists)).all()
        assert np.shape(env.reset(viewport=[160, 90]).observation["screenshot"]) == (90, 160, 3)
        assert env.reset(screenshots="none").observation["screenshot"] is None
        with pytest.raises(RuntimeError, match=r"screenshots.*'jpeg'"):
            env.reset(screenshots="jpeg")


@pytest.mark.parametrize("text", ["a page", "half of a pair: \ud83d"])
@pytest.mark.parametrize("form", ["list", "png"])
def test_an_answer_is_json_with_its_pixels_and_numbers_of_numpy_and_what_json_does_not_know_is_refused(text, form):
    picture = np.full((100, 300, 3), 255, np.uint8)
    picture[40:44, 7] = (0, 99, 1)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, format="PNG")

    async def answer(reward):
        observation = {"text": text, "screenshot": await encode(out.getvalue(), form)}
        return json.loads(
            await as_json({"type": "observation", "data": {"observation": observation, "reward": reward}})
        )

    seen = asyncio.run(answer(np.float64(0.5)))["data"]
    assert (seen["observation"]["text"], seen["reward"]) == (text.replace("\ud83d", "\ufffd"), 0.5)
    if form == "list":
        assert seen["observation"]["screenshot"] == picture.tolist()
    else:
        assert (pixels(seen["observation"]["screenshot"]) == picture).all()
    with pytest.raises(TypeError, match="complex"):
        asyncio.run(answer(1j))


def test_a_client_that_sends_faster_than_it_is_answered_is_made_to_wait(servers):
    message, most, answered = '{"type": "state"}' + " " * 300_000, 0, []
    with servers.open(num_sessions=1) as url, connect(f"ws{url[4:]}/ws", compression=None) as client_:
        reading = threading.Thread(target=lambda: answered.extend(client_.recv(timeout=60) for _ in range(200)))
        reading.start()
        for sent in range(200):
            client_.send(message)
            most = max(most, sent - len(answered))
        reading.join()
    assert most < 100, "what is sent ahead fills the kernel's buffers and five places, not the server's memory"


def test_pruned_html_and_clickable_elements_come_with_every_page(shared):
    with client(shared) as env:
        seen = env.reset(task_name="click-button", seed=0).observation
        after = env.step({"action_str": "Action: scroll('down')\nnoop(1)"}).observation
    for page in (seen, after):
        assert '<button bid="13"' in page["pruned_html"]
        assert "<script" not in page["pruned_html"]
        assert "reward-display" not in page["pruned_html"]  # MiniWoB's own display is for people
        elements = page["metadata"]["browsergym_obs"]["extra_element_properties"]
        assert elements["13"]["clickable"] is True
        # As text, because OpenEnv's example joins them.
        assert [float(number) > 0 for number in elements["13"]["bbox"]] == [True] * 4
    taken = "scroll(0, 480) # for scroll('down'); the first of 2 actions, answer with one"
    assert after["metadata"]["browsergym_obs"]["last_action"] == taken
    assert (after["error"], after["last_action_error"]) == ("", False)


@pytest.mark.browsergym
def test_elements_and_html_are_browsergyms():
    from browsergym.core.observation import extract_dom_extra_properties
    from browsergym.utils.obs import flatten_dom_to_str, prune_html

    async def look(env):
        await env.reset(miniwob("social-media", 2))
        tab = env.tab
        return await tab.send("DOMSnapshot.captureSnapshot", {"computedStyles": [], "includeDOMRects": True})

    snapshot = in_browser(look)
    found = describe(snapshot, (), scale=1.5, viewport=(332, 214))
    stock = extract_dom_extra_properties(snapshot, scale_factor=1.5)
    assert found.elements.keys() == stock.keys()
    assert len(stock) > 30
    for bid, fields in stock.items():
        assert found.elements[bid]["clickable"] == fields["clickable"], bid
        box = found.elements[bid]["bbox"]
        assert (box is None and fields["bbox"] is None) or np.allclose(box, fields["bbox"]), bid
    # It prints `::before` and `::after` as if they were elements.
    printed = re.sub(r"&lt;/?::\w+&gt;", "", prune_html(flatten_dom_to_str(snapshot)))
    assert "".join(found.html.split()) == "".join(printed.split())


def test_http_clients_with_cookies_have_an_episode_each(shared):
    with httpx.Client(base_url=shared, timeout=60) as one, httpx.Client(base_url=shared, timeout=60) as two:
        page = one.post("/reset", json={"task_name": "click-button", "seed": 0, "screenshots": "none"}).json()
        other = two.post("/reset", json={"task_name": "click-test", "screenshots": "none"}).json()
        assert page["observation"]["goal"] != other["observation"]["goal"]
        bid = bid_of(page["observation"]["text"], "button", "no")
        step = {"action": {"action_str": f"click('{bid}')", "metadata": {}}, "timeout_s": 15}
        answer = one.post("/step", json=step).json()
        assert (answer["reward"], answer["done"]) == (1.0, True)
        assert [c.get("/state").json()["step_count"] for c in (one, two)] == [1, 0]
        # The action's fields alone, as the first servers took them too.
        assert two.post("/step", json={"action_str": "noop(1)"}).json()["done"] is False
        over = one.post("/step", json=step)
        assert (over.status_code, "no episode: reset first" in over.json()["detail"]) == (409, True)
        assert one.post("/reset", json={"screenshots": "none"}).status_code == 200


def test_http_without_the_cookie_takes_nobodys_episode(servers):
    with servers.open(num_sessions=2) as url, httpx.Client(base_url=url, timeout=60) as owner:
        owner.post("/reset", json={"task_name": "click-button", "screenshots": "none"})
        refused = httpx.post(f"{url}/step", json={"action_str": "noop()"})
        assert (refused.status_code, "send back the cookie" in refused.json()["detail"]) == (409, True)
        assert httpx.get(f"{url}/state").json()["episode_id"] is None
        mine = httpx.post(f"{url}/reset", json={"task_name": "click-test", "screenshots": "none"}, timeout=60)
        assert "click-button" in owner.get("/state").json()["task_name"]
        assert dict(mine.cookies) != dict(owner.cookies)
        rebound = httpx.post(f"{url}/step", json={"action_str": "noop()"}, headers={"Host": "rebound.example:8000"})
        assert rebound.status_code == 403


def test_a_slash_at_the_end_leads_to_the_path_without_as_it_does_on_openenvs_servers(shared, servers):
    with httpx.Client(base_url=shared, timeout=60) as caller:
        for method, path in (("GET", "/health/"), ("GET", "/openapi.json/"), ("POST", "/reset/"), ("GET", "/state//")):
            answer = caller.request(method, path)
            assert (answer.status_code, answer.headers["location"]) == (307, path.rstrip("/"))
        assert caller.get("/health/", follow_redirects=True).json()["status"] == "healthy"
        assert caller.get("/web/").status_code == 404
    with servers.open(num_sessions=1, token="correct horse") as url:
        assert httpx.get(f"{url}/health/", follow_redirects=True).status_code == 200
        asked = {"json": {"task_name": "click-test", "screenshots": "none"}, "follow_redirects": True, "timeout": 60}
        assert httpx.post(f"{url}/reset/", **asked).status_code == 401
        played = httpx.post(f"{url}/reset/", **asked, headers={"Authorization": "Bearer correct horse"})
        assert played.json()["observation"]["goal"] == "Click the button."


def test_the_documents_of_openenvs_servers_are_answered(shared):
    with httpx.Client(base_url=shared, timeout=20) as caller:
        described = caller.get("/openapi.json").json()
        assert described["info"]["version"]
        for path, methods in described["paths"].items():
            for method in methods:
                assert method.upper() in caller.request("PATCH", path).headers["Allow"]
                if method == "get":
                    assert caller.get(path).status_code == 200
        asked = described["paths"]["/reset"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert {"seed", "task_name", "screenshots"} < asked["properties"].keys()
        assert set(described["paths"]) > {"/reset", "/step", "/state", "/health", "/metadata", "/schema"}
        page = caller.get("/docs")
        assert page.headers["Content-Type"].startswith("text/html")
        assert all(path in page.text for path in described["paths"])
        assert set(caller.get("/schema").json()) == {"action", "observation", "reset_observation", "state"}
        assert caller.get("/redoc").text == page.text
        assert caller.get("/nowhere").json()["detail"].startswith("sessions are WebSockets at /ws")


def test_the_task_api_lists_what_a_reset_plays(shared):
    with httpx.Client(base_url=shared, timeout=60) as caller:
        (name,) = caller.get("/list_environments").json()
        assert [split["name"] for split in caller.get(f"/{name}/splits").json()] == ["train", "test"]
        train = caller.post(f"/{name}/tasks", json={"split": "train"}).json()["tasks"]
        test = caller.post(f"/{name}/task_range", json={"split": "test"}).json()["tasks"]
        assert caller.post(f"/{name}/num_tasks", json={"split": "test"}).json() == {"num_tasks": len(test)}
        assert caller.post(f"/{name}/task_range", json={"split": "test", "start": -2}).json()["tasks"] == test[-2:]
        assert caller.post(f"/{name}/task", json={"split": "train", "index": 3}).json() == {"task": train[3]}
        pages = [{(task["task_name"], task["seed"]) for task in tasks} for tasks in (train, test)]
        assert all(pages)
        assert not pages[0] & pages[1]
    with client(shared) as env:
        listed = env.reset(split="test", index=2).observation["goal"]
        assert listed == env.reset(task_name=test[2]["task_name"], seed=test[2]["seed"]).observation["goal"]


def test_who_asks_for_tools_has_the_error_of_openenvs_server_over_http_and_on_a_socket(shared):
    asked = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
    told = httpx.post(f"{shared}/mcp", json=asked, timeout=20).json()
    assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", 7, -32603)
    assert httpx.post(f"{shared}/mcp", content=b"{", timeout=20).json() == told | {"id": None}
    with connect(f"{shared.replace('http', 'ws')}/ws") as socket_:
        socket_.send(json.dumps({"type": "mcp", "data": asked}))
        assert json.loads(socket_.recv(20)) == {"type": "mcp", "data": told}


def test_the_state_before_a_reset_names_the_servers_own_task(servers):
    with servers.open(num_sessions=1, default_site="miniwob.click-tab") as url:
        state = httpx.get(f"{url}/state").json()
        assert [state[name] for name in ("benchmark", "task_name", "step_count")] == ["miniwob", "click-tab", 0]
        with client(url) as env:
            assert env.state()["task_name"] == "click-tab"
        gone = httpx.get(f"{url}/state", headers={"Cookie": "webrl_session=of-an-earlier-server"})
        assert (gone.status_code, "no episode" in gone.text) == (409, True)


def test_a_step_after_the_end_gives_no_reward_again_and_says_that_the_episode_is_over(shared):
    with client(shared) as env:
        page = env.reset(task_name="click-button", seed=0, screenshots="png").observation
        click = {"action_str": f"click('{bid_of(page['text'], 'button', 'no')}')"}
        first = env.step(click)
        again = [env.step(click), env.step({"action_str": "noop(1)"})]
        assert (first.reward, first.done, first.observation["error"]) == (1.0, True, "")
        for answer in again:
            assert (answer.reward, answer.done, answer.observation["error"]) == (0.0, True, EPISODE_OVER)
            assert answer.observation["last_action_error"] is True
            assert answer.observation["screenshot"] == first.observation["screenshot"]
        assert (env.state()["cum_reward"], env.state()["step_count"]) == (1.0, 1)
        assert env.reset(task_name="click-button", seed=0).done is False


def test_a_silent_client_over_http_gives_its_place_to_one_that_waits(servers):
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(servers.open(num_sessions=1, screenshots="none", idle_timeout_s=0.2))
        silent, other = (stack.enter_context(httpx.Client(base_url=url, timeout=60)) for _ in range(2))
        assert silent.post("/reset", json={}).status_code == 200
        assert other.post("/reset", json={}).status_code == 200  # refused after 10 s of waiting
        assert silent.post("/step", json={"action_str": "noop()"}).status_code == 409
        assert silent.post("/reset", json={}).status_code == 200


def test_a_first_reset_that_fails_keeps_no_place(servers):
    slow = {"task_name": "click-test", "screenshots": "none", "step_timeout_s": 0.001}
    with servers.open(num_sessions=1) as url:
        for _ in range(3):
            failed = httpx.post(f"{url}/reset", json=slow, timeout=60)
            assert failed.status_code == 500, failed.text
        assert httpx.post(f"{url}/reset", json={"screenshots": "none"}, timeout=60).status_code == 200


def test_clients_whose_first_resets_come_at_once_have_an_episode_each():
    """Four clients a place are remembered, however many more begin before the first of them has its place."""

    async def play():
        config = RolloutConfig(num_workers=1, envs_per_worker=1)
        async with EnvPool(config) as pool:
            hub = Hub(pool, config, 1, ServerOptions(idle_timeout_s=0.05, screenshots="none"))
            sessions = HttpSessions(hub)
            transport = httpx.ASGITransport(make_app(hub, sessions))

            async def state_after_reset():
                async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as caller:
                    answer = await caller.post("/reset", json={})
                    return answer.status_code, (await caller.get("/state")).status_code

            try:
                return await asyncio.gather(*(state_after_reset() for _ in range(6)))
            finally:
                await sessions.close()

    assert asyncio.run(play()) == [(200, 200)] * 6


def test_a_client_that_has_gone_before_its_first_episode_keeps_no_place(servers):
    """It never learns the cookie, so nobody could play on; others would wait for a minute."""
    body = b'{"screenshots": "none"}'
    head = f"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with servers.open(num_sessions=1, screenshots="none") as url:
        for moment_s in (0, 0.01, 0, 0):  # before it has begun, in its midst, and while it waits
            with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as caller:
                caller.sendall(head + body)
                time.sleep(moment_s)
        with client(url) as env:  # which waits for 45 s
            assert env.reset().observation["goal"] == "Click the button."


@pytest.mark.parametrize("path", ["/reset", "/mcp", "/browsergym_env/tasks"])
def test_a_client_that_hangs_up_in_the_midst_of_a_body_is_no_error(shared, path, caplog):
    with socket.create_connection(("127.0.0.1", httpx.URL(shared).port)) as caller:
        caller.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{{".encode())
        time.sleep(0.2)  # it is read until the connection ends
    assert httpx.get(f"{shared}/health").status_code == 200
    assert caplog.text == ""


def shake_hands(url, path="/ws", more=""):
    """A connection that has asked for a WebSocket, and the first line of the answer."""
    caller = socket.create_connection(("127.0.0.1", httpx.URL(url).port), timeout=20)
    asked = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    key = f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
    caller.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{asked}{key}{more}\r\n".encode())
    return caller, caller.recv(4096).decode()


@pytest.mark.parametrize(
    ("frame", "code"), [(b"\x81\x82\0\0\0\0\xff\xff", 1007), (b"\x81\x02{}", 1002), (b"\x83\x80\0\0\0\0", 1002)]
)
def test_a_broken_websocket_frame_closes_its_session_with_a_code_and_is_no_error(shared, frame, code, caplog):
    caller, head = shake_hands(shared)
    with caller:
        assert head.startswith("HTTP/1.1 101")
        caller.sendall(frame)
        said = caller.recv(4096)
    assert (said[0], int.from_bytes(said[2:4])) == (0x88, code)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("path", "more", "status", "says"),
    [
        ("/", "", 404, "sessions are WebSockets at /ws"),
        ("/ws", "Origin: http://away.test\r\n", 403, "web pages may not connect"),
    ],
)
def test_a_refused_websocket_is_told_why_and_is_no_error(shared, path, more, status, says, caplog):
    caller, answer = shake_hands(shared, path, more)
    caller.close()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert says in answer
    assert httpx.get(f"{shared}/health").status_code == 200
    assert caplog.text == ""


def test_a_response_that_a_client_does_not_accept_is_named_and_a_clients_own_large_message_is_not(shared, caplog):
    with connect(f"ws{shared[4:]}/ws", compression=None) as large:
        large.send("x" * 2_000_000)
        with pytest.raises(ConnectionClosedError, match="1009"):
            large.recv(20)
    assert caplog.text == ""
    with connect(f"ws{shared[4:]}/ws", max_size=1 << 20) as small:
        small.send(json.dumps({"type": "reset", "data": {"viewport": [1280, 720], "screenshots": "list"}}))
        with pytest.raises(ConnectionClosedError, match="1009"):
            small.recv(60)
    assert httpx.get(f"{shared}/health").status_code == 200
    assert re.search(r"our response of \d{8} bytes is larger than it accepts", caplog.text)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/step", b'{"action": {"action_str": "noop()"}}', 409, "no episode: POST /reset first"),
        ("POST", "/step", b"{}", 422, "step: action_str is missing"),
        ("POST", "/reset", b"{", 422, "the body of /reset is not JSON"),
        ("POST", "/reset", b"[]", 422, "the body of /reset is a JSON object, not list"),
        ("POST", "/reset", b'{"seeed": 1}', 422, "reset: seeed = 1"),
        ("POST", "/reset", b'{"task_name": "click-tset"}', 400, "did you mean 'miniwob.click-test'"),
        ("POST", "/reset", b'{"benchmark": "arena"}', 400, "benchmark 'arena' without task_name; name one"),
        ("POST", "/reset", b'{"start_url": "http://away.test/"}', 400, "not among the server's rollout.allowed_hosts"),
        ("POST", "/reset", b'{"split": "test"}', 400, "name a task and its seed; split alone names none"),
        ("POST", "/reset", b'{"split": "test", "index": 1, "seed": 3}', 400, "its seed; leave out seed"),
        ("POST", "/reset", b'{"split": "test", "index": 9999}', 400, "index 9999: the split test has"),
        ("POST", "/browsergym_env/tasks", b"{}", 422, "browsergym_env/tasks: split is missing"),
        ("POST", "/browsergym_env/task_range", b'{"split": "test", "strat": 1}', 422, "strat = 1"),
        ("POST", "/browsergym_env/num_tasks", b'{"split": "dev"}', 400, "split 'dev': expected one of train, test"),
        ("POST", "/browsergym_env/task", b'{"split": "train"}', 400, "index is missing"),
        ("POST", "/reset", b"x" * 1_100_000, 413, "a body has at most 1048576 bytes"),
        ("GET", "/reset", b"", 405, "/reset takes POST only"),
        ("GET", "/web", b"", 404, "sessions are WebSockets at /ws"),
        ("GET", "/ws", b"", 404, "sessions are WebSockets at /ws"),
        ("PUT", "/ws", b"", 404, "sessions are WebSockets at /ws"),
    ],
)
def test_a_bad_http_request_has_one_clear_answer(shared, method, path, body, status, says):
    try:
        answer = httpx.request(method, shared + path, content=body, timeout=60)
    except httpx.TransportError:
        assert status == 413  # it may hang up before it has all
        return
    assert answer.status_code == status
    assert says in answer.text
    assert answer.text.count("\n") <= 1


@pytest.mark.parametrize(
    ("asked", "waits"), [({}, (30, 20)), ({"step_timeout_s": 9}, (9, 4.5)), ({"settle_cap_s": 40}, (30, 15))]
)
def test_the_servers_own_wait_for_quiet_is_kept_where_the_deadline_allows_it(asked, waits):
    hub = Hub(pool=None, config=RolloutConfig(settle_cap_s=20), size=1)
    start = read_options({"task_name": "click-test", "seed": 1} | asked, hub)
    assert (start.config.step_timeout_s, start.config.settle_cap_s) == waits


def test_places_go_to_those_who_wait_in_turn_and_an_idle_session_keeps_its_own_until_then():
    async def play():
        hub = Hub(pool=None, config=RolloutConfig(), size=1, options=ServerOptions(idle_timeout_s=0.01))
        one, two = (Session(hub) for _ in range(2))
        patient = Hub(pool=None, config=RolloutConfig(), size=1)
        busy, three, four = (Session(patient) for _ in range(3))
        hub.enter(one)
        await asyncio.sleep(0.05)
        assert hub.active == (one,)  # idle, and nobody waits
        await hub.admit(two, 5)
        assert hub.active == (two,)
        hub.release(two)
        hub.enter(busy)
        with pytest.raises(AtCapacity, match=r"1/1 sessions active; close some, or start the server with --sessions"):
            await hub.admit(three, 0.05)
        first, second = (asyncio.ensure_future(hub.admit(session, 5)) for session in (three, four))
        await asyncio.sleep(0)
        hub.release(busy)
        await first
        assert (hub.active, second.done()) == ((three,), False)
        hub.release(three)
        await second
        for session in (one, two, three, four, busy):
            await session.park()

    asyncio.run(play())


def public_answer(screenshot, page="click-test"):
    observed = {"text": "", "url": f"http://127.0.0.1:8888/miniwob/{page}.html", "goal": "Click", "axtree_txt": "x"}
    data = {"observation": observed | {"screenshot": screenshot}, "reward": 0.0, "done": False}
    return {"type": "observation", "data": data}


def ask_public_server(answer, **settings):
    """The first page of click-test from a server that answers so."""

    async def play(url):
        config = RolloutConfig(env="openenv", urls=(url,), num_workers=1, envs_per_worker=1, **settings)
        async with RemotePool(config) as pool, pool.env() as env:
            return await env.reset(miniwob("click-test"))

    return with_server(lambda url: asyncio.run(play(url)), answer)


def test_openenvs_own_server_can_be_played_on_with_and_without_its_lists():
    lists = [[[255, 0, 0], [0, 255, 0]]]
    assert ask_public_server(public_answer(lists)).screenshot is None
    png = ask_public_server(public_answer(lists), screenshots=True).screenshot
    assert np.asarray(Image.open(io.BytesIO(png))).tolist() == lists


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (public_answer(None), "no screenshot, which rollout.screenshots requires"),
        (public_answer([[1, 2]]), r"shape \[1, 2\], not \[H, W, 3\]"),
        (public_answer([[[256, 0, 0]]]), r"neither a base64 PNG nor lists"),
        (public_answer([[[0, 0, 0]]], "click-button"), "start it with BROWSERGYM_TASK_NAME=click-test"),
    ],
)
def test_a_server_without_what_is_asked_for_is_told_so(answer, says):
    with pytest.raises(BrowserError, match=says):
        ask_public_server(answer, screenshots=True)


def test_an_unknown_task_ends_before_anything_is_served_and_variables_that_are_not_read_are_named(monkeypatch, webrl):
    monkeypatch.setenv("BROWSERGYM_COLOUR", "red")
    unread, refused = webrl(2, "serve-env", "--task", "miniwob.click-tset", "--port", "0").err.splitlines()
    assert unread.startswith("not read: BROWSERGYM_COLOUR (read: BROWSERGYM_ with PORT")
    assert "did you mean 'miniwob.click-test'" in refused
