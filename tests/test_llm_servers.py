"""Server processes of our own, without vLLM: start, health, death, and the key that their routes want."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import httpx
import pytest
from llm_builders import save_tiny_model, score
from processes import has_ended, wait_until
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError
from webrl.llm import open_model
from webrl.llm.servers.vllm import verify_logprobs
from webrl.llm.servers.vllm_fleet import (
    ServerProcess,
    Weights,
    can_reload,
    find_python,
    gpu_groups,
    server_command,
    server_environment,
)
from webrl.llm.servers.vllm_plugin import RequireKey
from webrl.runs.machine import free_port

# A server with a child that ignores SIGTERM, as worker processes may.
SERVER = textwrap.dedent("""
    import http.server, os, signal, subprocess, sys
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", stubborn])
    print("pids", os.getpid(), child.pid, flush=True)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def log_message(self, *args): pass
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
""")


def process(tmp_path, code=SERVER):
    port = free_port()
    return ServerProcess([sys.executable, "-c", code, str(port)], port=port, log=tmp_path / "server.log", env={})


def pids(log):
    return [int(word) for word in log.read_text().split("pids")[1].split()[:2]]


def test_stop_leaves_nothing_of_the_process_group(tmp_path):
    async def main():
        server = process(tmp_path)
        server.start()
        await server.wait_healthy(30)
        assert server.alive
        await server.stop()
        assert not server.alive

    asyncio.run(main())
    wait_until(lambda: all(map(has_ended, pids(tmp_path / "server.log"))))


@pytest.mark.parametrize(
    ("code", "timeout_s", "said"),
    [
        ("print('no such GPU'); raise SystemExit(3)", 30, "(?s)ended while it started.*server.log.*no such GPU"),
        ("import time; time.sleep(600)", 0.5, r"not healthy within 0\.5 s"),
    ],
)
def test_a_server_that_ends_while_it_starts_or_never_gets_healthy_is_an_error(tmp_path, code, timeout_s, said):
    async def main():
        server = process(tmp_path, code)
        server.start()
        with pytest.raises(ModelError, match=said):
            await server.wait_healthy(timeout_s)
        await server.stop()

    asyncio.run(main())


def test_servers_die_with_a_controller_that_is_killed(tmp_path):
    script = textwrap.dedent(f"""
        import asyncio, sys, time
        from pathlib import Path
        from webrl.llm.servers.vllm_fleet import ServerProcess
        from webrl.runs.machine import free_port
        port = free_port()
        server = ServerProcess([sys.executable, "-c", {SERVER!r}, str(port)], port=port,
                               log=Path({str(tmp_path)!r}) / "server.log", env={{}})
        server.start()
        asyncio.run(server.wait_healthy(30))
        print("up", flush=True)
        time.sleep(600)
    """)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    controller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env)
    assert controller.stdout.readline() == b"up\n"
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    controller.stdout.close()
    wait_until(lambda: all(map(has_ended, pids(tmp_path / "server.log"))))


def test_gpus_are_split_into_groups(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert gpu_groups(EngineConfig()) == [["4"], ["5"], ["6"], ["7"]]
    assert gpu_groups(EngineConfig(tensor_parallel=2)) == [["4", "5"], ["6", "7"]]
    with pytest.raises(ModelError, match=r"tensor_parallel=8.*4 GPUs"):
        gpu_groups(EngineConfig(tensor_parallel=8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_groups(EngineConfig()) == [[]]


def test_command_ignores_the_models_generation_config_and_extra_arguments_win(tmp_path):
    weights = Weights.of(str(save_tiny_model(tmp_path)))
    engine = EngineConfig(extra_args=("--max-model-len", "99"))
    command = server_command("py", weights, engine, ModelsConfig(), 1234, on_gpu=True)
    text = " ".join(command)
    assert "--generation-config vllm" in text
    assert "--port 1234" in text
    assert "--max-model-len 1024" in text
    assert text.endswith("--max-model-len 99")
    assert "--enable-lora" not in text
    assert "--dtype bfloat16" in text
    assert "--enforce-eager" in server_command("py", weights, engine, ModelsConfig(), 1, on_gpu=False)


def test_weights_are_loaded_in_place_where_their_shape_is_the_same(tmp_path):
    tied = Weights.of(str(save_tiny_model(tmp_path / "a")))
    other = Weights.of(str(save_tiny_model(tmp_path / "b", seed=1)))
    untied = Weights.of(str(save_tiny_model(tmp_path / "c", tie=False)))
    auto, restart = (EngineConfig(weight_update=w) for w in ("auto", "restart"))
    assert can_reload(tied, other, auto)
    assert not can_reload(tied, other, restart)
    assert not can_reload(tied, untied, auto), "another architecture"
    config = json.loads((tmp_path / "b/config.json").read_text())
    config |= {"pad_token_id": 1, "eos_token_id": [2, 3], "use_cache": False, "dtype": "bfloat16"}
    (tmp_path / "b/config.json").write_text(json.dumps(config))
    assert can_reload(tied, Weights.of(str(tmp_path / "b")), auto), "a trainer sets these, and the weights are the same"


def test_weights_are_known_by_what_they_are_not_by_where_they_lie(tmp_path):
    first = Weights.of(str(save_tiny_model(tmp_path / "a")))
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert Weights.of(str(tmp_path / "copy")).answers_as(first)
    save_tiny_model(tmp_path / "a", seed=1)
    assert not Weights.of(str(tmp_path / "a")).answers_as(first), "the folder has been written anew"


def test_missing_vllm_is_a_clear_error():
    with pytest.raises(ModelError, match="is not an executable"):
        find_python(EngineConfig(vllm_python="/no/such/python"))


def test_verify_logprobs_accepts_the_same_weights_and_refuses_others(tmp_path):
    same, other = save_tiny_model(tmp_path / "a"), save_tiny_model(tmp_path / "b", seed=1)

    def scorer(folder):
        return lambda samples: [score(folder, prompt, action) for prompt, action, _ in samples]

    async def main():
        async with open_model(str(same), EngineConfig(num_threads=1), ModelsConfig(device="cpu")) as model:
            lengths = []

            def watched(samples):
                lengths.extend(len(prompt) for prompt, *_ in samples)
                return scorer(same)(samples)

            differences = await verify_logprobs(model, watched, 1e-3, prompt_tokens=100)
            assert len(differences) > 20
            assert max(lengths) == 100, "a prompt as long as the run's own is among them"
            assert max(differences) < 1e-4
            with pytest.raises(ModelError, match="differ from the trainer's"):
                await verify_logprobs(model, scorer(other), 1e-3)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/health", None, 200),
        ("/collective_rpc", "Bearer key", 200),
        *(("/collective_rpc", header, 401) for header in (None, "Bearer wrong", "key")),
        *((path, None, 401) for path in ("//collective_rpc", "/health/../collective_rpc", "/health/", "/v1/models")),
    ],
)
def test_every_route_but_health_wants_the_key(path, header, status, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "key")

    async def answer(request):
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route("/{rest:path}", answer, methods=["GET", "POST", "OPTIONS"])])
    app.add_middleware(RequireKey)

    async def ask(method):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            headers = {"Authorization": header} if header else {}
            url = httpx.URL("http://server").copy_with(raw_path=path.encode())
            return (await client.request(method, url, headers=headers)).status_code

    assert {asyncio.run(ask(method)) for method in ("GET", "POST", "OPTIONS")} == {status}


def test_two_keys_are_none_and_a_websocket_without_one_is_closed(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "key")
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append(scope)

    async def send(message):
        sent.append(message)

    async def ask(kind, *keys):
        sent.clear()
        headers = [(b"authorization", b"Bearer " + key) for key in keys]
        await RequireKey(app)({"type": kind, "path": "/v1/realtime", "headers": headers}, None, send)
        return [message.get("status") or message["type"] for message in sent]

    assert asyncio.run(ask("websocket")) == ["websocket.close"]
    assert asyncio.run(ask("http", b"wrong", b"key"))[0] == 401
    assert not reached
    assert asyncio.run(ask("websocket", b"key")) == []
    asyncio.run(RequireKey(app)({"type": "lifespan"}, None, send))
    assert [scope["type"] for scope in reached] == ["websocket", "lifespan"]


def test_a_gpu_server_compiles_no_sampler_unless_it_is_asked_to(monkeypatch, tmp_path):
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    assert server_environment(["0"], "key", tmp_path)["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    assert server_environment(["0"], "key", tmp_path)["VLLM_USE_FLASHINFER_SAMPLER"] == "1"
