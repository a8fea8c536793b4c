"""What becomes of vLLM servers between uses, with a program in vLLM's place that answers as it is told to."""

import asyncio
import contextlib
import os
import signal
import sys
import textwrap

import pytest
from llm_builders import save_tiny_model

from webrl.config import EngineConfig, ModelsConfig, RunConfig
from webrl.errors import ModelError, StageError
from webrl.llm import Sampling, open_model
from webrl.llm.servers.vllm_fleet import ServerProcess, borrow, give_back, keep_servers
from webrl.runs.folder import open_run

# Notes each request; the file `refuse` names paths to answer with 500.
STAND_IN = textwrap.dedent("""\
    #!{python}
    import http.server, pathlib, sys
    folder = pathlib.Path({folder!r})
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            path = self.path.partition("?")[0]
            with (folder / "requests").open("a") as file:
                print(path, file=file)
            refused = path in (folder / "refuse").read_text().split()
            self.send_response(500 if refused else 200); self.end_headers()
            self.wfile.write(b"told to refuse" if refused else b"{answer}" if "completions" in path else b"[]")
        def log_message(self, *args): pass
    with (folder / "requests").open("a") as file:
        print("start", file=file)
    if said := (folder / "say").read_text():
        print(said, flush=True)
        (folder / "say").write_text("" if "once" in said else said)
        sys.exit(1)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
""")
ANSWER = '{"choices": [{"token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}]}'.replace('"', r"\"")


class StandIn:
    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.python = folder / "python"
        self.python.write_text(STAND_IN.format(python=sys.executable, folder=str(folder), answer=ANSWER))
        self.python.chmod(0o755)
        for name in ("refuse", "say", "requests"):
            (folder / name).write_text("")

    def refuse(self, *paths):
        (self.folder / "refuse").write_text(" ".join(paths))

    def seen(self):
        return (self.folder / "requests").read_text().split()

    def engine(self, **options):
        return EngineConfig(kind="vllm", vllm_python=str(self.python), start_timeout_s=30, **options)

    def use(self, model, **options):
        """Open a model as a stage does, and give it back."""

        async def work():
            fleet = await borrow(str(model), self.engine(**options), ModelsConfig())
            assert fleet.alive
            await give_back(fleet)

        asyncio.run(asyncio.wait_for(work(), 60))


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return StandIn(tmp_path / "vllm")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [save_tiny_model(folder / str(i), seed=i) for i in range(2)]


def test_without_an_owner_servers_end_with_their_model(vllm, models):
    vllm.use(models[0])
    vllm.use(models[0])
    assert vllm.seen() == ["start", "start"]


def test_servers_of_a_run_sleep_between_uses_and_take_new_weights_in_place(vllm, models):
    with keep_servers():
        vllm.use(models[0])
        vllm.use(models[0], timeout_s=7.0)
        vllm.use(models[1])
    load = ["/collective_rpc", "/reset_prefix_cache"]
    assert vllm.seen() == ["start", "/sleep", "/wake_up", "/sleep", "/wake_up", *load, "/sleep"]


def test_models_of_another_shape_or_setting_have_servers_of_their_own(vllm, models, tmp_path):
    wider = save_tiny_model(tmp_path / "wider", hidden=256)
    with keep_servers():
        for model, share in ((models[0], 0.4), (wider, 0.4), (models[0], 0.4), (models[0], 0.5), (wider, 0.4)):
            vllm.use(model, gpu_memory_utilization=share)
    assert vllm.seen().count("start") == 3
    assert vllm.seen().count("/wake_up") == 2


def test_servers_that_cannot_sleep_are_stopped_and_started_again(vllm, models, caplog):
    vllm.refuse("/sleep")
    with keep_servers():
        vllm.use(models[0])
        vllm.use(models[0])
    assert vllm.seen() == ["start", "/sleep", "start", "/sleep"]
    assert "cannot sleep; stopped until it is needed" in caplog.text


def test_servers_that_are_not_to_sleep_are_stopped_between_uses(vllm, models):
    with keep_servers():
        vllm.use(models[0], extra_args=("--no-enable-sleep-mode",))
        vllm.use(models[0], extra_args=("--no-enable-sleep-mode",))
    assert vllm.seen() == ["start"] * 2


def test_servers_that_do_not_wake_or_refuse_weights_are_started_anew(vllm, models, caplog):
    with keep_servers():
        vllm.use(models[0])
        vllm.refuse("/wake_up", "/collective_rpc")
        vllm.use(models[0])
        vllm.refuse("/collective_rpc")
        vllm.use(models[1])
    assert vllm.seen() == [
        *("start", "/sleep", "/wake_up", "start", "/sleep"),
        *("/wake_up", "/collective_rpc", "start", "/sleep"),
    ]
    assert "does not wake up; restarting it" in caplog.text
    assert "restarting the servers instead" in caplog.text


def test_the_end_of_a_run_ends_its_servers_whatever_happened(vllm, models):
    fleets = []

    async def work():
        fleets.append(await borrow(str(models[0]), vllm.engine(), ModelsConfig()))
        try:
            raise RuntimeError("a stage failed")
        finally:
            await give_back(fleets[0])

    with contextlib.suppress(RuntimeError), keep_servers():
        asyncio.run(work())
    assert not fleets[0].alive
    assert vllm.seen() == ["start", "/sleep"]


def test_servers_are_started_again_once_after_one_died(vllm, models):
    async def work():
        async with open_model(str(models[0]), vllm.engine(max_retries=0), ModelsConfig()) as model:

            async def ask(wait_s):
                await asyncio.sleep(wait_s)
                return (await model.generate([5, 6], Sampling())).ids

            for _ in range(2):  # all together, and while the servers are started again for one that is given up
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ask(0.0), 0.3)
                assert await asyncio.gather(*map(ask, (0.0, 0.0, 0.05, 0.1, 0.2))) == [(3,)] * 5
                os.killpg(model.fleet.servers[0]._process.pid, signal.SIGKILL)
                await asyncio.sleep(0.2)
            for _ in range(2):
                with pytest.raises(ModelError, match=r"(?s)died again.*server0.log"):
                    await model.generate([5, 6], Sampling())

    asyncio.run(asyncio.wait_for(work(), 60))
    assert vllm.seen().count("start") == 2


def test_where_one_of_several_servers_died_none_stays_awake_and_all_are_started_again(vllm, models, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    async def work():
        async with open_model(str(models[0]), vllm.engine(), ModelsConfig()) as model:
            for sleeps in (False, True):
                os.killpg(model.fleet.servers[0]._process.pid, signal.SIGKILL)
                await asyncio.sleep(0.2)
                if sleeps:
                    async with model.asleep():
                        assert model.fleet.servers == []
                assert (await model.generate([5, 6], Sampling())).ids == (3,)
                assert model.fleet.alive

    asyncio.run(asyncio.wait_for(work(), 60))
    assert vllm.seen().count("start") == 6


FULL_GPU = (
    "(EngineCore pid=7) ERROR [core.py:1330] ValueError: Free memory on device cuda:0 (0.81/139.8 GiB) on startup is "
    "less than desired GPU memory utilization (0.85, 118.8 GiB)."
)


@pytest.mark.parametrize("cause", ["ValueError: No available memory for the cache blocks.", FULL_GPU])
def test_a_server_that_finds_too_little_gpu_memory_is_an_error_that_names_the_option(vllm, models, cause):
    noise = "WARNING This can cause fd limit errors like `OSError: [Errno 24] Too many open files`."
    (vllm.folder / "say").write_text(f"{noise}\n{cause}\nTraceback (most recent call last):\n  wait_for_engine()\n")
    with pytest.raises(ModelError, match=r"^GPU memory is too small .*engine.gpu_memory_utilization=0.85") as error:
        vllm.use(models[0])
    assert str(error.value).endswith(f"says:\n{cause}")


@pytest.mark.parametrize(("text", "starts"), [("once", 2), ("always", 3)])
def test_a_server_whose_measurement_another_process_disturbed_is_started_again_twice(vllm, models, text, starts):
    cause = f"AssertionError: Error in memory profiling. Initial free memory 125.19 GiB ({text})"
    (vllm.folder / "say").write_text(cause)
    with contextlib.nullcontext() if text == "once" else pytest.raises(ModelError, match="Error in memory profiling"):
        vllm.use(models[0])
    assert vllm.seen().count("start") == starts


def test_a_server_that_ends_is_quoted_with_its_first_and_last_errors_and_none_of_an_earlier_start(tmp_path):
    log = tmp_path / "server0.log"
    log.write_text("OldError: of the start before\n")
    code = "for n in range(20): print(f'E{n}Error: no')\nprint('vllm: error: unrecognized arguments: --x\\nbye')"
    server = ServerProcess([sys.executable, "-c", code], port=1, log=log, env={})
    server.start()
    with pytest.raises(ModelError) as error:
        asyncio.run(server.wait_healthy(300))
    said = str(error.value).partition(" says:\n")[2].splitlines()
    assert said == [f"E{n}Error: no" for n in (0, 1, 2, 3, 17, 18, 19)] + ["vllm: error: unrecognized arguments: --x"]


def test_what_an_error_of_the_servers_tells_to_change_may_be_changed_in_a_run_that_has_begun(tmp_path):
    def config(**engine):
        return RunConfig.model_validate({"name": "r", "runs_dir": str(tmp_path), "rollout": {"engine": engine}})

    open_run(config(kind="vllm"))
    open_run(config(kind="vllm", gpu_memory_utilization=0.4, weight_update="restart"))
    with pytest.raises(StageError, match=r"rollout\.engine\.kind"):
        open_run(config())
