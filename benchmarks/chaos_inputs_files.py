"""Bad files and run folders. Columns: command, exit code, value, place, fix (`BadInput`)."""

from __future__ import annotations

from chaos_inputs_case import BadInput, a_fifo, a_folder, a_run, a_socket, link_to

_GEN = "python scripts/gen_task.py --num_tasks 1"
_PROCESS = "python scripts/process_data.py --stage 1 --actor_path none --output_path out.jsonl"
_TEST_DATA = "python scripts/generate_test_data.py --output_path tasks.json"
_ORM = "webrl train-orm demo --out out/new"
_SITE = "webrl run c.yaml --dry-run"
_OWN_SITE = {
    "c.yaml": 'tasks: {suite: web}\nrollout: {web: {start_urls: ["http://127.0.0.1:8000/"], train_files: [i.jsonl]}}\n'
}
_FIRST = '{"id": "first", "instruction": "x"}\n'

FILES = (
    # failures to generate from
    BadInput(f"{_GEN} --generator empty", 1, "'empty'", "model folder", "has no config.json", files={"empty": a_folder}),
    BadInput(f"{_GEN} --failures hostile/empty", 1, "hostile/empty", "no attempted task", ""),
    BadInput(f"{_GEN} --failures hostile/random_bytes", 1, "malformed JSON", "hostile/random_bytes:1", ""),
    BadInput(f"{_GEN} --failures hostile/deep.json", 1, "malformed JSON", "hostile/deep.json:1", ""),
    BadInput(f"{_GEN} --failures hostile/no_objects.jsonl", 1, "found 1", "hostile/no_objects.jsonl:1", "`task` and `web`"),
    BadInput(f"{_GEN} --failures hostile/wrong_types.jsonl", 1, "7", "hostile/wrong_types.jsonl:1", "non-empty text"),
    BadInput(f"{_GEN} --failures f.jsonl", 1, "one JSON array", "f.jsonl", "jq -c '.[]'", files={"f.jsonl": '[\n  {"task": "a", "web": "b"}\n]\n'}),
    BadInput(f"{_GEN} --failures folder", 1, "folder", "no phase with", "`webrl rollout`", files={"folder": a_folder}),
    BadInput(f"{_GEN} --failures pipe", 1, "pipe", "regular file", "", files={"pipe": a_fifo}),
    BadInput(f"{_GEN} --failures socket", 1, "socket", "regular file", "", files={"socket": a_socket}),
    BadInput(f"{_GEN} --failures loop", 2, "'loop'", "--failures", "does not exist", files={"loop": link_to("loop")}),
    BadInput(f"{_GEN} --failures data/samples/failures.jsonl --output_path data/README.md/x --base_url {{address}}/chat/v1", 1, "data/README.md/x", "output", "not a folder"),
    BadInput(f"{_GEN} --failures data/samples/failures.jsonl --output_path folder --base_url {{address}}/chat/v1", 2, "'folder'", "--output_path", "is a folder", files={"folder/file": ""}),
    BadInput(f"{_GEN} --rules hostile/list_at_top.yaml", 2, "[{'actor'", "hostile/list_at_top.yaml", "mapping of sites"),
    BadInput(f"{_GEN} --rules hostile/latin1.yaml", 2, "0xe9", "hostile/latin1.yaml", "UTF-8"),
    BadInput(f"{_GEN} --rules rules.yaml", 2, "'(('", "rules.yaml: all", "regular expression", files={"rules.yaml": 'all: [{on_page: "(("}]'}),
    BadInput(f"{_GEN} --rules rules.yaml", 2, "has 0 groups", "rules.yaml: all", "it needs one", files={"rules.yaml": "all: [{on_page: x}]"}),
    BadInput(f"{_GEN} --rules rules.yaml", 2, "7", "rules.yaml: all", "a rule is text", files={"rules.yaml": "all: [7]"}),
    BadInput(f"{_GEN} --rules rules.yaml", 2, "one text", "rules.yaml", "mapping of sites", files={"rules.yaml": "shopping: one text"}),
    BadInput(f"{_GEN} --rules rules.yaml", 2, "<stream end>", "rules.yaml", "YAML", files={"rules.yaml": "a: ["}),
    BadInput(f"{_GEN} --rules rules.yaml", 2, "'shopping'", "rules.yaml", "was it cut off", files={"rules.yaml": "all: [a]\nshopping:\n"}),
    BadInput(f"{_GEN} --rules folder", 2, "'folder'", "rules", "Is a directory", files={"folder": a_folder}),
    # rollouts to process
    BadInput(f"{_PROCESS} --rollout_path hostile/empty", 1, "hostile/empty", "no usable step", ""),
    BadInput(f"{_PROCESS} --rollout_path hostile/random_bytes", 1, "hostile/random_bytes", "no usable step", ""),
    BadInput(f"{_PROCESS} --rollout_path hostile/no_objects.jsonl", 1, "1", "hostile/no_objects.jsonl:1", "neither a trajectory"),
    BadInput(f"{_PROCESS} --rollout_path hostile/bad_trajectories.jsonl", 1, "hostile/bad_trajectories.jsonl", "no usable step", ""),
    BadInput(f"{_PROCESS} --rollout_path hostile/bad_records.jsonl", 1, "hostile/bad_records.jsonl", "no usable step", ""),
    BadInput(f"{_PROCESS} --rollout_path hostile/vab", 1, "hostile/vab", "no usable step", ""),
    BadInput(f"{_PROCESS} --rollout_path folder", 1, "folder", "neither a traces folder", "trajectories.jsonl", files={"folder": a_folder}),
    BadInput(f"{_PROCESS} --rollout_path pipe", 1, "pipe", "no such file or folder", "", files={"pipe": a_fifo}),
    BadInput(f"{_PROCESS} --rollout_path socket", 1, "socket", "no such file or folder", "", files={"socket": a_socket}),
    BadInput(f"{_PROCESS} --rollout_path folder", 1, "folder", "neither a traces folder", "trajectories.jsonl", files={"folder/trajectories.jsonl": a_fifo}),
    BadInput(f"{_PROCESS} --rollout_path data/README.md/x", 1, "data/README.md/x", "no such file", ""),
    BadInput(f"{_PROCESS} --rollout_path text.pt", 1, "damaged", "text.pt", "", files={"text.pt": "hello"}),
    BadInput(f"{_PROCESS} --rollout_path data/samples/vab --output_path data/README.md/x", 1, "data/README.md/x", "output", "not a folder"),
    BadInput(f"{_PROCESS} --rollout_path data/samples/experience --output_path folder", 2, "'folder'", "--output_path", "is a folder", files={"folder/x": ""}),
    BadInput(f"{_PROCESS} --rollout_path data/samples/vab", 1, "no_token_ids", "data/samples/vab", "--actor_path"),
    # experience of the released code
    BadInput(f"{_PROCESS} --rollout_path hostile/runs_code.pkl", 1, "posix.system", "hostile/runs_code.pkl", "Do not load"),
    BadInput(f"{_PROCESS} --rollout_path hostile/empty_list.pkl", 1, "no usable step", "hostile/empty_list.pkl", ""),
    BadInput(f"{_PROCESS} --rollout_path hostile/steps.pkl", 1, "flat list", "hostile/steps.pkl", "unfiltered file"),
    BadInput(f"{_PROCESS} --rollout_path hostile/number.pkl", 1, "int", "hostile/number.pkl", "list of trajectories"),
    # task files
    BadInput(f"{_TEST_DATA} --input hostile/random_bytes", 1, "malformed JSON", "hostile/random_bytes:1", ""),
    BadInput(f"{_TEST_DATA} --input hostile/no_objects.jsonl", 1, "1", "hostile/no_objects.jsonl:1", "`task` and `web`"),
    BadInput(f"{_TEST_DATA} --input hostile/wrong_types.jsonl", 1, "7", "hostile/wrong_types.jsonl:1", "non-empty text"),
    BadInput(f"{_TEST_DATA} --input folder", 1, "a folder", "not a regular file", "", files={"folder": a_folder}),
    BadInput(f"{_TEST_DATA} --input pipe", 1, "pipe", "regular file", "", files={"pipe": a_fifo}),
    BadInput(f"{_TEST_DATA} --input tasks.jsonl", 1, "miniwob.x", "none of 1 tasks", "WebArena", files={"tasks.jsonl": '{"task": "Click it.", "web": "miniwob.x"}\n'}),
    BadInput("python scripts/generate_test_data.py --output_path /dev/full", 1, "/dev/full", "No space left", "free some space"),
    BadInput("python scripts/generate_test_data.py --output_path data/README.md/x", 1, "data/README.md", "generate_test_data", "exists"),
    # instructions for one's own site
    *(
        BadInput(_SITE, 1, value, "i.jsonl:2", fix, files=_OWN_SITE | {"i.jsonl": _FIRST + entry + "\n"})
        for entry, value, fix in (
            ('{"intent": "x"}', "unknown key 'intent'", "known: id, instruction"),
            ("[1]", "[1]", "expected an object with 'instruction'"),
            ('{"id": "a/b", "instruction": "x"}', "id = 'a/b'", "must match pattern"),
            ('{"id": "first", "instruction": "x"}', "'first'", "is also that of i.jsonl:1"),
            ('{"checks": []}', "instruction", "it is missing"),
            ('{"instruction": "x", "start": "http://[::1"}', "start = 'http://[::1'", "not a web address"),
            *(
                (f'{{"instruction": "x", "checks": [{{{check}}}]}}', value, fix)
                for check, value, fix in (
                    ('"txt": "a"', "checks.0.txt = 'a'", "unknown key"),
                    ("", "checks.0", "url, text, answer, javascript, http, sql, verify; this one has none"),
                    ('"text": "a", "url": "b"', "checks.0", "this one has url and text"),
                    ('"url": "(a"', "checks.0.url = '(a'", "not a regular expression"),
                    ('"http": "/a", "path": "$["', "checks.0.path = '$['", "not a JSON path such as"),
                    ('"http": "/a", "equals": 1', "checks.0", "needs 'path'"),
                    ('"text": "a", "equals": 1', "checks.0", "'equals' belongs to"),
                    ('"http": "//[a"', "checks.0.http = '//[a'", "not a web address"),
                )
            ),
        )
    ),
    BadInput(f"{_SITE} rollout.web.train_files=[i.csv]", 1, "i.csv", "instructions", ".jsonl, .json and .txt", files=_OWN_SITE | {"i.csv": "a,b\n"}),
    BadInput(f"{_SITE} rollout.web.train_files=[i.txt]", 1, "no instruction", "i.txt", "", files=_OWN_SITE | {"i.txt": "# nothing\n"}),
    # judged trajectories
    BadInput(f"{_ORM} --data hostile/empty", 1, "hostile/empty", "no finished trajectory", ""),
    BadInput(f"{_ORM} --data hostile/random_bytes", 1, "hostile/random_bytes", "no finished trajectory", "broken_line"),
    BadInput(f"{_ORM} --data hostile/bad_trajectories.jsonl", 1, "hostile/bad_trajectories.jsonl", "no finished trajectory", "bad_example"),
    BadInput(f"{_ORM} --data folder", 1, "folder", "neither trajectories.jsonl", "traces", files={"folder": a_folder}),
    BadInput(f"{_ORM} --data pipe", 1, "pipe", "regular file", "", files={"pipe": a_fifo}),
    BadInput(f"{_ORM} --data two.jsonl", 1, "bad_example 1", "two.jsonl: no finished trajectory with an outcome", "", files={"two.jsonl": "{}\n"}),
    BadInput(f"{_ORM} --data one.jsonl", 1, "0 successes and 1 failures", "outcome model", "add rollouts", files={"one.jsonl": '{"instruction": "Click it.", "responses": [], "final_page": "p", "success": 0}\n'}),
    BadInput("webrl train-orm demo --out orm --data one.jsonl", 1, "1 successes and 0 failures", "outcome model", "add rollouts", files={"one.jsonl": '{"instruction": "Click it.", "responses": [], "final_page": "p", "success": 1}\n'}),
)  # fmt: skip


def _shown(page: str = "[1] button 'a'", success: str = "true") -> str:
    """A demonstration of one click."""
    steps = f'[{{"observation": "{page}", "response": "click(\'1\')"}}]'
    return f'{{"instruction": "Click it.", "steps": {steps}, "success": {success}}}\n'


_NAMED = "webrl {} --run runs/r"
_TASK = '{"task_id": "a", "site": "miniwob.click-test"}\n'
_LABEL = '{"trajectory_id": "t", "p_yes": 0.9, "reward": 1}\n'

FOLDERS = (
    # files of a run folder that its own stages read
    BadInput(_NAMED.format("rollout"), 1, "tasks.jsonl", "runs/r/phase_00", "No such file", files=a_run("filter-tasks")),
    BadInput(_NAMED.format("rollout"), 1, "malformed JSON", "tasks.jsonl:2", "", files=a_run("filter-tasks", tasks=_TASK + "{nope}\n")),
    BadInput(_NAMED.format("rollout"), 1, "field 'seed': must be a valid integer, found '3'", "tasks.jsonl:1", "", files=a_run("filter-tasks", tasks='{"task_id": "a", "site": "b", "seed": "3"}\n')),
    BadInput(_NAMED.format("rollout"), 1, "unknown field 'sit' in Task", "tasks.jsonl:1", "", files=a_run("filter-tasks", tasks='{"task_id": "a", "sit": "b"}\n')),
    BadInput(_NAMED.format("rollout"), 1, "no tasks", "tasks.jsonl", "loosen the filters", files=a_run("filter-tasks", tasks="")),
    BadInput(_NAMED.format("rollout"), 1, "'miniwob.nowhere'", "unknown MiniWoB page", "the known ones are in /", files=a_run("filter-tasks", tasks=_TASK.replace("click-test", "nowhere"))),
    BadInput(_NAMED.format("rollout"), 1, "tasks.jsonl", "runs/r/phase_00", "regular file", files=a_run("filter-tasks", tasks=a_fifo)),
    BadInput(_NAMED.format("rollout"), 1, "a folder", "tasks.jsonl", "", files=a_run("filter-tasks", tasks=a_folder)),
    BadInput(_NAMED.format("label"), 1, "trajectories.jsonl", "runs/r/phase_00", "", files=a_run("rollout")),
    BadInput(_NAMED.format("label"), 1, "UTF-16", "trajectories.jsonl", "convert it: iconv", files=a_run("rollout", trajectories=b"\xff\xfe\n")),
    BadInput(_NAMED.format("label"), 1, "an instance of Trajectory, found []", "trajectories.jsonl:1", "", files=a_run("rollout", trajectories="[]\n")),
    BadInput(_NAMED.format("label"), 1, "'winning'", "trajectories.jsonl:1", "page_ended", files=a_run("rollout", trajectories='{"trajectory_id": "t", "task": {"task_id": "a", "site": "b"}, "instruction": "i", "phase": 0, "steps": [], "final_observation": "", "status": "winning"}\n')),
    BadInput(_NAMED.format("replay"), 1, "labels.jsonl", "runs/r/phase_00", "", files=a_run("label", trajectories="")),
    BadInput(_NAMED.format("replay"), 1, "nothing to train on", "trajectories.jsonl", "unjudged", files=a_run("label", trajectories="", labels=_LABEL + '{"trajectory_id": "u", "p_yes": "high", "reward": 1}\n')),
    BadInput(_NAMED.format("train"), 1, "train.jsonl", "runs/r/phase_00", "", files=a_run("replay")),
    BadInput(_NAMED.format("train"), 1, "train.jsonl", "runs/r/phase_00", "", files=a_run("replay", train_filter="")),
    BadInput(_NAMED.format("train"), 1, "malformed JSON", "train.jsonl:1", "", files=a_run("replay", train='{"step_id": \n')),
    BadInput(_NAMED.format("gen-tasks --phase 1"), 1, "labels.jsonl", "runs/r", "`webrl label`", files=a_run("eval")),
    BadInput(_NAMED.format("filter-tasks --phase 1"), 1, "trajectories.jsonl", "runs/r/phase_00", "", files=a_run("gen-tasks", phase=1) | {"runs/r/phase_00/stages": a_folder}),
    BadInput(_NAMED.format("filter-tasks --phase 1"), 1, "runs/r/phase_00", "phase 1 was not", "put it back", files=a_run("gen-tasks", phase=1)),
    # what the run folder itself is made of
    BadInput(_NAMED.format("label"), 1, "stages/label.json", "runs/r/phase_00", "remove it", files=a_run() | {"runs/r/phase_00/stages/label.json": "{}"}),
    BadInput(_NAMED.format("label"), 1, "stages/label.json", "runs/r/phase_00", "", files=a_run() | {"runs/r/phase_00/stages/label.json": '{"counts": {'}),
    BadInput(_NAMED.format("label"), 1, "stages/label.json", "runs/r/phase_00", "", files=a_run() | {"runs/r/phase_00/stages/label.json": a_folder}),
    BadInput(_NAMED.format("eval") + " --phase 1", 1, "'accept'", "phase_01", "`webrl run`", files=a_run() | {"runs/r/phase_01.bak/x": "", "runs/r/phase_1e9/x": ""}),
    BadInput("webrl label --run runs/r actor.lr=1", 1, "'actor.lr'"[1:-1], "runs/r", "Choose another `name=`", files=a_run("rollout")),
    BadInput(_NAMED.format("label"), 2, "'actr'", "runs/r/config.yaml", "did you mean", files={"runs/r/config.yaml": "name: r\nactr: {lr: 1}\n"}),
    BadInput(_NAMED.format("label"), 1, "ends within a line", "runs/r/config.yaml", "put its config.yaml back", files=a_run("rollout") | {"runs/r/config.yaml": "name: r\ntasks: {num_seed_tasks: 2}\nnum_phases: 1"}),
    BadInput(_NAMED.format("label"), 2, "0xff", "runs/r/config.yaml", "UTF-8", files={"runs/r/config.yaml": b"\xff"}),
    BadInput(_NAMED.format("label"), 2, "'runs/r'", "config.yaml", "`webrl run`", files={"runs/r/config.yaml": a_folder}),
    BadInput("webrl run --run runs/r", 2, "'runs/r'", "no config.yaml", "name the CONFIG", files={"runs/r/phase_00/stages/rollout.json": "{}"}),
    BadInput("webrl run demo --run runs/r", 2, "runs/r", "config.yaml", "Is a directory", files={"runs/r/config.yaml": a_folder}),
    BadInput("webrl run demo name=r", 1, "runs/r", "run folder", "", files={"runs": "a file"}),
    BadInput("webrl run demo runs_dir=/proc/nowhere", 1, "/proc/nowhere", "run folder", ""),
    BadInput("webrl run demo runs_dir=/dev/null/x", 1, "/dev/null/x", "run folder", ""),
    BadInput("webrl run demo runs_dir=/sys", 1, "/sys/demo", "run folder", ""),
    BadInput(f"webrl run demo name={'n' * 300}", 1, "nnn", "run folder", "File name too long"),
    # demonstrations that a run would begin with
    BadInput("webrl run demo replay.demos=[d.jsonl]", 2, "d.jsonl", "No such file or directory (looked in", "correct it, or leave it out"),
    BadInput("webrl run demo replay.demos=[d.jsonl] --dry-run", 2, "d.jsonl", "No such file or directory (looked in", "correct it, or leave it out"),
    BadInput("webrl run demo replay.demos=[d.jsonl]", 2, "d.jsonl", "replay.demos", "convert it: iconv", files={"d.jsonl": b"\xff\xfe{}\n"}),
    BadInput("webrl run demo replay.demos=[d.jsonl]", 2, "d.jsonl", "replay.demos", "leave it out", files={"d.jsonl": "instruction,steps\n"}),
    BadInput("webrl run demo replay.demos=[d.jsonl] --dry-run", 2, "d.jsonl", "replay.demos", "leave it out", files={"d.jsonl": '{"prompt": "Click", "completion": "click(1)"}\n'}),
    BadInput("webrl run demo replay.demos=[d.jsonl] --dry-run", 2, "'d.jsonl' has no finished trajectory that succeeded", "replay.demos", "leave it out", files={"d.jsonl": _shown(success="false")}),
    BadInput("webrl run demo replay.demos=[d.jsonl] rollout.dialect=webrl --dry-run", 2, "click('1')", "'d.jsonl' has no step that can be imitated", "is not an action of rollout.dialect=webrl (", files={"d.jsonl": _shown()}),
    BadInput("webrl run demo replay.demos=[d.jsonl] --dry-run", 2, "no page was recorded, so it answers to nothing", "'d.jsonl' has no step that can be imitated", "leave it out", files={"d.jsonl": _shown(page=" ")}),
    BadInput("webrl run demo trackers=[tensorboard] name=r", 2, "tracker 'tensorboard' cannot be set up", "runs/r/tensorboard", "leave it out of `trackers`", files={"runs/r/tensorboard": "a file"}),
    BadInput("webrl status runs/r", 2, "unknown key 'no_such_section'", "runs/r/config.yaml", "another version of webrl may have written it: use that", files={"runs/r/config.yaml": "name: r\nno_such_section: {a: 1}\n"}),
    BadInput("webrl run demo --run runs/r", 2, "not a file", "runs/r/config.yaml", "cannot read config", files={"runs/r/config.yaml": link_to("/dev/full")}),
    BadInput(_NAMED.format("rollout"), 1, "device", "trajectories.jsonl", "not a regular file", files=a_run("filter-tasks", config="rollout: {max_steps: 1}\n", tasks=_TASK, trajectories=link_to("/dev/full"))),
    BadInput("webrl rollout --run runs/r", 2, "shopping", "rollout.webarena.sites", "WA_SHOPPING", files=a_run("filter-tasks", config="tasks: {suite: webarena}\n", tasks='{"task_id": "a", "site": "shopping", "instruction": "Buy it."}\n')),
    BadInput("webrl run demo tasks.suite=webarena rollout.webarena.train_files=[nowhere.json] trackers=[]", 1, "nowhere.json", "No such file", ""),
    BadInput("webrl run demo tasks.suite=webarena rollout.webarena.train_files=[f.json] trackers=[]", 1, "'moon'", "f.json: task 0", "known: ", files={"f.json": '[{"intent": "Go.", "sites": ["moon"]}]'}),
    BadInput("webrl run demo tasks.suite=webarena rollout.webarena.train_files=[f.json] trackers=[]", 1, "7", "f.json: task 0", "`sites`", files={"f.json": '[{"intent": "Go.", "sites": 7}]'}),
    BadInput("webrl run demo tasks.suite=webarena rollout.webarena.train_files=[f.json] trackers=[]", 1, "{}", "f.json: task 0", "no instruction", files={"f.json": "[{}]"}),
)  # fmt: skip
