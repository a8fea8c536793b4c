"""The arena as processes: up, down, killed, in the way of another; what is left of it each time."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from arena_server import Visitor, serving, share_templates
from filelock import FileLock
from processes import living, python, wait_until

from webrl.cli import main
from webrl.errors import StageError, UsageError
from webrl_arena.world import running
from webrl_arena.world.client import Arena, ArenaError

pytestmark = pytest.mark.arena


def test_a_killed_worker_is_replaced_and_a_killed_server_leaves_nothing_in_the_way(tmp_path, tmp_path_factory):
    with serving(tmp_path / "arena", tmp_path_factory) as arena:
        server = psutil.Process(arena.state.pid)
        first = server.children()
        assert len(first) == 2
        first[0].kill()
        wait_until(lambda: len({worker.pid for worker in server.children()} - {first[0].pid}) == 2)
        with Visitor(arena, "staff") as staff:
            assert "Dashboard" in staff.see("/dashboard/")
            workers = server.children()
            os.kill(server.pid, signal.SIGKILL)
            wait_until(lambda: not living(workers))
            assert staff.session.database.is_file()  # in the middle of its work
            with pytest.raises(ArenaError, match="does not answer"):
                arena.open()
            with pytest.raises(ArenaError, match="start it: webrl arena up"):
                Arena.running(arena.folder)
            running.start(arena.folder, 0, 1)
            again = Arena.running(arena.folder)
            assert not staff.session.database.exists()
            staff.http.base_url = httpx.URL(again.state.url)
            assert staff.http.get("/").status_code == 403  # another arena's cookie
            with pytest.raises(StageError, match="an arena is already running"):
                running.start(arena.folder, 0, 1)
    assert running.find(arena.folder) is None
    assert not again.state.alive


def test_the_command_starts_shows_resets_and_ends_it(tmp_path, tmp_path_factory, capsys, webrl):
    folder = tmp_path / "arena"
    share_templates(folder, tmp_path_factory)
    there = ["--folder", str(folder)]
    assert main(["arena", "status", *there]) == 1
    assert "webrl arena up" in webrl(1, "arena", "reset", *there).err
    try:
        assert "shop admin  http://127.0.0.1:" in webrl(0, "arena", "up", "--port", "0", "--workers", "1", *there).out
        assert main(["arena", "open", "--user", "staff", *there]) == 0
        entered = httpx.get(capsys.readouterr().out.strip(), follow_redirects=True, trust_env=False, timeout=120)
        assert entered.status_code == 200
        assert entered.url.path == "/dashboard/"
        assert main(["arena", "open", "--user", "customer:x@example.com", *there]) == 2
        assert "no user 'customer:x@example.com'" in capsys.readouterr().err
        assert "1 sessions" in webrl(0, "arena", "status", *there).out
        assert main(["arena", "reset", *there]) == 0
        assert running.num_sessions(folder) == 0
        state = Arena.running(folder).state
    finally:
        assert main(["arena", "down", *there]) == 0
    assert not state.alive
    assert not (folder / running.STATE).exists()
    assert not list((folder / running.SESSIONS).iterdir())


def test_a_taken_port_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["arena", "up", "--port", str(port), "--folder", str(tmp_path)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "json.py").write_text("raise SystemExit('the working folder was searched')")
    monkeypatch.chdir(here)
    (tmp_path / "templates").write_text("not a folder")
    (tmp_path / running.LOCK).touch()
    with pytest.raises(StageError, match=r"(?s)ended while it started; its log .*FileExistsError"):
        running.start(tmp_path, 0, 1)
    assert running.find(tmp_path) is None


def test_a_missing_package_is_named_with_what_installs_it(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['oscar'] = None; from webrl.cli import main; sys.exit(main(sys.argv[1:]))"
    ended = python("-c", hide, "arena", "up", "--folder", tmp_path, code=2)
    assert "pip install 'webrl[arena]'" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_an_arena_of_another_version_is_refused(tmp_path: Path) -> None:
    me = psutil.Process()
    running.State("http://127.0.0.1:9", "key", me.pid, me.create_time(), "older").write(tmp_path)
    with pytest.raises(UsageError, match=r"another version of webrl.*webrl arena down, then webrl arena up"):
        Arena.running(tmp_path)


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    thesis = tmp_path / running.SESSIONS / "mine" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("years of work")
    with pytest.raises(UsageError, match="holds other files"):
        running.start(tmp_path, 0, 1)
    assert not running.stop(tmp_path)
    (tmp_path / running.LOCK).touch()
    running.stop(tmp_path)
    assert thesis.read_text() == "years of work"


def test_two_servers_in_one_folder_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with FileLock(tmp_path / running.LOCK), socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        command = [sys.executable, "-m", "webrl_arena.world.shop.serve", str(tmp_path), str(number), "1"]
        ended = subprocess.run(command, pass_fds=[number], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.strip() == f"another arena starts or runs in {str(tmp_path)!r}"


def test_the_state_of_a_process_that_has_gone_is_not_believed(tmp_path: Path) -> None:
    me = psutil.Process()
    running.State("http://127.0.0.1:9", "key", me.pid, me.create_time() - 60, "content").write(tmp_path)
    assert running.find(tmp_path) is None
    for broken in ("{", "[]", '{"pid": 1}', '{"url": "", "key": "", "pid": "x", "started": 0}'):
        (tmp_path / running.STATE).write_text(broken)
        assert running.find(tmp_path) is None
    shutil.rmtree(tmp_path)
    assert running.find(tmp_path) is None
