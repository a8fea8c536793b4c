"""The two commands: generation from a file of failures, and WebArena-Lite task files."""

import json
import runpy
from pathlib import Path

import orjson
import pytest
from curriculum_builders import PAGE, ChatServer, build_task, serving
from processes import python

from webrl.errors import DataError
from webrl_webarena.task_files import read_instructions, webarena_entry, write_instructions, write_task_file
from webrl_webarena.tasks import instruction_of, is_scored, load_suite, read_task_file

ROOT = Path(__file__).resolve().parents[2]


def script(name):
    """The command of a script."""
    return runpy.run_path(str(ROOT / "scripts" / f"{name}.py"))["main"]


def write_failures(path, number=4):
    lines = [
        {"task": f'Click on the "b{i}" button.', "web": "miniwob.click-button", "seed": i, "page": PAGE}
        for i in range(number)
    ]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))


def test_gen_task_writes_filtered_instructions_for_the_pages_of_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_failures(tmp_path / "failures.jsonl")

    def answer(user, number):
        if "Feasible" in user:
            return "YES"
        return ['Click on the "ok" button.', 'Click on the "absent" button.', "nonsense"][number % 3]

    with serving(ChatServer(answer)) as url:
        code = script("gen_task")(
            ["--failures", "failures.jsonl", "--num_tasks", "6", "--base_url", url, "--setting", "filter.max_states=9"]
        )
    out = capsys.readouterr().out
    assert code == 0
    lines = [json.loads(line) for line in (tmp_path / "generated.jsonl").open()]
    assert lines
    assert {line["task"] for line in lines} == {'Click on the "ok" button.'}
    assert {line["web"] for line in lines} == {"miniwob.click-button"}
    assert {line["lineage"]["strategy"] for line in lines} == {"in_breadth"}
    assert "'malformed': 2" in out
    assert f"{len(lines)} instructions in generated.jsonl" in out


@pytest.mark.webarena
def test_gen_task_leaves_out_what_webarena_lite_asks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"task": f"Close issue number {i}", "web": "gitlab"} for i in range(3)]
    (tmp_path / "failures.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    asked = next(instruction_of(task) for task in load_suite("webarena_lite") if task.site == "gitlab")

    def answer(user, number):
        if "Feasible" in user:
            return "YES"
        return asked if number == 1 else f"Rename the project of user number {number}"

    options = [
        "--num_tasks",
        "9",
        "--setting",
        "generate.tasks_per_prompt=1",
        "--setting",
        "generate.engine.max_batch=1",
    ]
    with serving(ChatServer(answer)) as url:
        assert script("gen_task")(["--failures", "failures.jsonl", "--base_url", url, *options]) == 0
    tasks = read_instructions(tmp_path / "generated.jsonl")
    assert asked not in {task.instruction for task in tasks}
    assert {task.lineage.model for task in tasks} == {"writer"}


def test_gen_task_as_typed_works_on_the_samples_that_ship(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    code = script("gen_task")(["--num_tasks", "8"])
    assert code == 0
    kept = read_instructions(tmp_path / "runs/samples/generated.jsonl")
    assert kept
    assert all(task.site.startswith("miniwob.") and task.lineage.parent_ids for task in kept)
    assert '"num_requests": 8' in capsys.readouterr().out


def test_gen_task_says_what_is_wrong_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert script("gen_task")([]) == 2
    assert "give --failures or --run" in capsys.readouterr().err


def test_help_lists_the_options_without_importing_torch():
    code = "import sys, runpy; sys.argv = ['gen_task.py', '--help']\ntry: runpy.run_path({!r}, run_name='__main__')\n"
    code += "except SystemExit: pass\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    for name in ("gen_task", "generate_test_data"):
        path = str(ROOT / "scripts" / f"{name}.py")
        assert "default" in python("-c", code.format(path)).stdout


def test_a_dry_run_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_failures(tmp_path / "f.jsonl")
    assert script("gen_task")(["--failures", "f.jsonl", "--dry-run"]) == 0
    assert "f.jsonl -> generated.jsonl" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["f.jsonl"]


def test_a_generated_instruction_becomes_a_task_file_entry_that_reads_back_as_a_training_task(tmp_path):
    tasks = [build_task("Buy the mouse", "shopping"), build_task("Plan a walk", "map+wikipedia", start_url="__MAP__/x")]
    entry = webarena_entry(tasks[0], 7)
    assert entry == {
        "sites": ["shopping"],
        "task_id": 7,
        "require_login": True,
        "storage_state": "./.auth/shopping_state.json",
        "start_url": "__SHOPPING__",
        "geolocation": None,
        "intent_template": "Buy the mouse",
        "instantiation_dict": {},
        "intent": "Buy the mouse",
        "require_reset": False,
        "eval": {
            "eval_types": ["string_match"],
            "reference_answers": {"exact_match": "N/A"},
            "reference_url": "",
            "program_html": [],
            "string_note": "",
            "reference_answer_raw_annotation": "",
        },
        "intent_template_id": 7,
    }
    assert webarena_entry(tasks[1], 8)["storage_state"] is None
    assert write_task_file(tmp_path / "tasks.json", tasks, first_id=7) == 2
    first, second = read_task_file(tmp_path / "tasks.json")
    assert (first.instruction, first.site, first.start_url) == ("Buy the mouse", "shopping", "__SHOPPING__")
    assert second.start_url == "__MAP__/x"
    assert not is_scored(first)


def test_generate_test_data_leaves_out_other_sites_and_refuses_a_file_without_any(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_instructions(tmp_path / "a.jsonl", [build_task("Buy a mouse", "shopping"), build_task("Click it now")])
    assert script("generate_test_data")(["--input", "a.jsonl", "--output_path", "out", "--split"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0.json"]
    assert "2 tasks, 1 of them not on WebArena's sites" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"sites found: miniwob\.click-button"):
        write_task_file(tmp_path / "b.json", [build_task("Click it now")])


def test_instruction_files_round_trip_and_bad_lines_are_quoted(tmp_path):
    tasks = [build_task("Buy a mouse", "shopping", start_url="__SHOPPING__"), build_task("Click it now", seed=4)]
    write_instructions(tmp_path / "a.jsonl", tasks)
    assert read_instructions(tmp_path / "a.jsonl") == tasks
    (tmp_path / "b.jsonl").write_text('{"task": "x", "web": "y"}\n{"nothing": 1}\n')
    with pytest.raises(DataError, match=r"b\.jsonl:2: expected an instruction"):
        read_instructions(tmp_path / "b.jsonl")
