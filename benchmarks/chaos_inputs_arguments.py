"""Bad arguments and bad configs. Columns: command, exit code, value, place, fix (`BadInput`)."""

from __future__ import annotations

from chaos_inputs_case import BadInput, a_fifo, a_folder, a_run, a_socket, link_to

_GEN = "python scripts/gen_task.py"
_PROCESS = "python scripts/process_data.py"
_TEST_DATA = "python scripts/generate_test_data.py"
_NODES = "bash run_multinode.sh --dry-run"
_STUDY = "config: demo\nname: s\nnum_phases: 1\n"
_NO_DISPLAY = {"DISPLAY": "", "WAYLAND_DISPLAY": ""}

ARGUMENTS = (
    # the command itself
    BadInput("webrl", 2, "which command", "webrl", "`webrl --help` lists them"),
    BadInput("webrl rum", 2, "'rum'", "command", "did you mean `webrl run`"),
    BadInput("webrl run --see 3", 2, "--see", "webrl run", "did you mean --seed? `webrl run --help` lists"),
    BadInput("webrl --see run", 2, "--see", "webrl", "`webrl --help`"),
    BadInput("webrl --versoin", 2, "--versoin", "webrl", "did you mean --version? `webrl --help` lists"),
    BadInput("webrl run --dryrun", 2, "--dryrun", "webrl run", "did you mean --dry-run?"),
    BadInput("webrl run demo --actor.lr=2", 2, "--actor.lr=2", "webrl run", "did you mean actor.lr=…?"),
    BadInput("webrl run --help acept", 2, "'acept'", "--help", "a SECTION is one of tasks, models"),
    BadInput("webrl status a b", 2, "unrecognized arguments: b;", "webrl", "`webrl status --help` lists"),
    BadInput("webrl status --run runs/a", 2, "--run", "webrl", "; did you mean RUN without --run? `webrl"),
    BadInput("webrl report --run runs/a", 2, "--run", "webrl", "; did you mean RUN without --run? `webrl"),
    BadInput("webrl run --config demo", 2, "--config", "webrl run", "; did you mean CONFIG without --config? `webrl"),
    BadInput("webrl eval --runn runs/a", 2, "--runn", "webrl eval", "; did you mean --run? `webrl"),
    BadInput("webrl doctor --xyz", 2, "--xyz; `", "webrl doctor", "`webrl doctor --help` lists"),
    BadInput("webrl grpo --lerning_rate 1", 2, "--lerning_rate", "webrl grpo", "did you mean --learning-rate?"),
    BadInput(f"{_GEN} --faliures", 2, "--faliures", "gen_task", "did you mean --failures?"),
    BadInput(f"{_PROCESS} --add_rewards", 2, "--add_rewards", "process_data", "did you mean --add_reward?"),
    BadInput(f"{_TEST_DATA} --outputpath", 2, "--outputpath", "generate_test_data", "did you mean --output_path?"),
    BadInput("webrl run --dry-run=maybe", 2, "'maybe'", "--dry-run", "ignored"),
    BadInput("webrl run --run", 2, "--run", "argument", "expected one argument"),
    BadInput("webrl run --seed x", 2, "'x'", "--seed", "whole number"),
    BadInput("webrl run --seed -1", 2, "'-1'", "--seed", "whole number"),
    BadInput("webrl run --seed=-1", 2, "'-1'", "--seed", "whole number of 0 or more"),
    BadInput("webrl run --seed ²", 2, "'²'", "--seed", "whole number"),
    BadInput("webrl label demo --phase 9", 1, "'rollout'", "phase_09", "run `webrl run`"),
    BadInput("webrl gen-tasks demo --phase 3", 1, "'eval'", "phase_02", "run `webrl run`"),
    BadInput("webrl run one.yaml two.yaml", 2, "'two.yaml'", "CONFIG", "key=value"),
    BadInput("webrl run nowhere.yaml", 2, "'nowhere.yaml'", "config", "shipped ones: arena, demo"),
    BadInput("webrl run dmeo", 2, "'dmeo'", "config", "shipped ones: arena, demo"),
    BadInput(f"webrl run {'x' * 300}", 2, "xxx", "config", "shipped ones"),
    BadInput("webrl run ''", 2, "''", "config", "shipped ones"),
    BadInput("webrl run folder", 2, "'folder'", "config", "shipped ones", files={"folder": a_folder}),
    BadInput("webrl run pipe.yaml", 2, "'pipe.yaml'", "config", "shipped ones", files={"pipe.yaml": a_fifo}),
    BadInput("webrl run socket.yaml", 2, "'socket.yaml'", "config", "shipped ones", files={"socket.yaml": a_socket}),
    BadInput("webrl run loop.yaml", 2, "'loop.yaml'", "config", "shipped ones", files={"loop.yaml": link_to("loop.yaml")}),
    BadInput("webrl label --run nowhere", 2, "'nowhere'", "config.yaml", "start one with `webrl run`"),
    BadInput(f"webrl label --run {'x' * 300}", 2, "xxx", "run folder", "start one with `webrl run`"),
    # the others' own options
    BadInput("webrl doctor heart", 2, "'heart'", "check", "checks: python"),
    BadInput("webrl doctor --sites --config nowhere.yaml", 2, "'nowhere.yaml'", "config", "shipped ones"),
    BadInput("webrl doctor --config demo", 2, "demo", "--config", "--sites"),
    BadInput("webrl doctor --sites python", 2, "python", "--sites", "leave"),
    BadInput("webrl serve-env --port x --dry-run", 2, "'x'", "--port", "invalid int"),
    BadInput("webrl serve-env --port 99999 --dry-run", 2, "99999", "--port", "1 to 65535"),
    BadInput("webrl serve-env --port=-1 --dry-run", 2, "-1", "--port", "1 to 65535"),
    BadInput("webrl serve-env --idle-timeout nan --dry-run", 2, "nan", "--idle-timeout", "above 0"),
    BadInput("webrl serve-env --idle-timeout=-5 --dry-run", 2, "-5", "--idle-timeout", "above 0"),
    BadInput("webrl serve-env --idle-timeout inf --dry-run", 2, "inf", "--idle-timeout", "above 0"),
    BadInput("webrl serve-env --host 0.0.0.0 --dry-run", 2, "0.0.0.0", "--host", "set WEBRL_ENV_TOKEN"),
    BadInput("webrl serve-env --host 203.0.113.7", 2, "203.0.113.7", "cannot listen", "another --host or --port", variables={"WEBRL_ENV_TOKEN": "t"}),
    BadInput("webrl serve-env --port {port}", 2, "{port}", "127.0.0.1", "another --host or --port"),
    BadInput("webrl serve-env rollout.env=openenv rollout.urls=[http://h] --dry-run", 2, "openenv", "rollout.env", "rollout.env=browser"),
    BadInput("webrl serve-env --task miniwob.click-tset --port 0", 2, "click-tset", "MiniWoB page", "click-test"),
    BadInput("webrl arena up --port 99999", 2, "99999", "--port", "1 to 65535"),
    BadInput("webrl arena up --workers 0", 2, "0", "--workers", "from 1 to 256"),
    BadInput("webrl arena up --workers 100000", 2, "100000", "--workers", "from 1 to 256"),
    BadInput("webrl arena up --folder f", 2, "/f'", "--folder", "new or empty folder", files={"f": ""}),
    BadInput("webrl arena up --folder d", 2, "/d'", "--folder", "new or empty folder", files={"d/mine.txt": ""}),
    BadInput("webrl arena status --port 3", 2, "--port", "arena status", "belongs to `webrl arena up`"),
    BadInput("webrl arena down --user staff", 2, "--user", "arena down", "belongs to `webrl arena open`"),
    BadInput("webrl arena open --folder nowhere", 1, "/nowhere'", "no arena runs", "webrl arena up"),
    BadInput("webrl init-site 'http://[::1'", 2, "'http://[::1'", "start_urls", "http://host:port/path"),
    BadInput("webrl init-site ftp://h", 2, "'ftp://h'", "start_urls", "http://host:port/path"),
    BadInput("webrl init-site 127.0.0.1:5000", 2, "'127.0.0.1:5000'", "start_urls", "http://host:port/path"),
    BadInput("webrl init-site http://h --out c.yaml", 2, "c.yaml", "already there", "choose another --out, or move it away", files={"c.yaml": "x"}),
    BadInput("webrl init-site http://h --pages 0", 2, "0", "explore_pages", "greater than or equal to 1"),
    BadInput("webrl init-site http://h --user bob --password-env NO_SUCH", 2, "'NO_SUCH'", "--user bob", "export it"),
    BadInput("webrl init-site http://h --basic-password-env X", 2, "X", "--basic-password-env", "--basic-user NAME"),
    BadInput("webrl init-site http://h --password-env X", 2, "X", "--password-env", "export it"),
    BadInput("webrl push nowhere ann/agent", 2, "'nowhere'", "does not exist", "name a run folder"),
    BadInput("webrl push runs/r agent", 2, "'agent'", "repository", "OWNER/NAME", files=a_run("rollout")),
    BadInput("webrl push runs/r ann/agent --phase 7", 2, "7", "--phase", "phases 0 to 0", files=a_run("rollout")),
    BadInput("webrl push runs/r ann/agent", 2, "(phase 0)", "'runs/r'", "has not finished", files=a_run("rollout")),
    BadInput("webrl study nosuch --dry-run", 2, "'nosuch'", "config", "shipped ones: study_ablations, study_demo"),
    BadInput("webrl study study_demo --seeds 1 1 --dry-run", 2, "[1, 1]", "seeds", "each once"),
    BadInput("webrl study study_demo --methods nope --dry-run", 2, "'nope'", "study_demo.yaml", "it has: default"),
    BadInput("webrl study study_demo --seeds 0-2", 2, "'0-2'", "--seeds", "separate several by spaces: --seeds 0 1 2"),
    BadInput("webrl study study_demo --phases 0", 2, "0", "study_demo.yaml: num_phases", "greater than or equal to 1"),
    BadInput("webrl study study_demo actor.objektive=awr", 2, "'actor.objektive'", "overrides", "did you mean"),
    BadInput("webrl study study_demo actor", 2, "'overrides.actor'", "override", "key.subkey=value"),
    BadInput("webrl study study_demo seed=3", 2, "overrides.seed", "study_demo.yaml", "set the study's own key"),
    BadInput("webrl study study_demo --parallel 0 --dry-run", 2, "0", "--parallel", "at least one cell"),
    *(
        BadInput("webrl study s.yaml --dry-run", 2, value, f"s.yaml: {place}", fix, files={"s.yaml": f"{_STUDY}{more}\n"})
        for more, value, place, fix in (
            ("overrides: {aktor: {}}", "'aktor'", "overrides: unknown key", "did you mean 'actor'?"),
            ("metods: {}", "'metods'", "unknown key", "a study has: config, name, runs_dir, seeds, num_phases, reference, overrides, methods"),
            ("seeds: 3", "3", "seeds = ", "expected a list: [first, second]"),
            ("seeds: []", "[]", "seeds = ", "must have at least 1 item"),
            ("methods: {default: 3}", "3", "methods.default = ", "expected options with values"),
            ("methods: {awr: {}}", "'default'", "reference", "is not one of the methods: awr"),
            ("methods: {default: {}, start: {}}", "the name is reserved", "methods.start", "choose another"),
            ("methods: {default: {}, start_sft: {}}", "the name is reserved", "methods.start_sft", "choose another"),
            ("methods: {default: {}, a-b: {}}", "'a-b'", "methods: the name ", "may hold letters"),
            ("methods: {default: {}, a: {models: {actor: b}}}\ndemos: [d]", "a.models.actor", "methods", "every method begins with its seed's start"),
            *(
                (f"methods: {{default: {{}}, a: {{{options}}}}}", value, place, fix)
                for options, value, place, fix in (
                    ("actor: {objektive: awr}", "'actor.objektive'", "methods.a: unknown key", "did you mean 'actor.objective'?"),
                    ("seed: 3", "methods.a.seed", "methods.a", "set the study's own key"),
                    ("tasks: {shares: failures}", "shares=failures", "methods.a: tasks", "needs source=fresh"),
                    ("tasks: {num_eval_tasks: 9}", "tasks.num_eval_tasks = 9 would", "methods.a", "set it in `overrides`"),
                    ("models: {actor: b}", "models.actor = 'b' would", "methods.a", "set it in `overrides`"),
                    ("rollout: {temperature: 0.5}", "rollout.temperature = 0.5 would", "methods.a", "set it in `overrides`"),
                    ("sft: {epochs: 9}", "sft.epochs = 9.0 would", "methods.a", "set it in `overrides`"),
                )
            ),
        )
    ),
    BadInput("webrl grpo --dry-run max_staleness=-1", 2, "-1", "max_staleness", "greater than or equal to 0"),
    BadInput("webrl grpo --dry-run --task-name click-test,click-tst", 2, "'miniwob.click-tst'", "unknown MiniWoB page", "did you mean 'miniwob.click-test'"),
    *(
        BadInput(f"webrl grpo --dry-run {options}", 2, value, place, fix)
        for options, value, place, fix in (
            ("--benchmark workarena", "'workarena.", "task", "name a server of other tasks with browsergym_url"),
            ("--task-name arena.shop.prize", "'arena.shop.prize'", "no task", "the nearest type is 'arena.shop.price'"),
            ("--benchmark arena --task-name shop.dearest", "'arena.shop.dearest'", "is held out of training", "its tasks have ids: "),
            ("--task-name arena.shop.price-eval-0-3", "'arena.shop.price-eval-0-3'", "is one of the evaluation's", "train on its template, arena.shop.price"),
            ("--observation dom", "'dom'", "the command line: observation", "must be 'axtree', 'html' or 'none'"),
        )
    ),
    BadInput("webrl grpo --dry-run num_generations=1", 2, "1", "num_generations", "use 2 or more"),
    BadInput("webrl grpo --dry-run --learning-rate nan", 2, "nan", "learning_rate", "finite"),
    BadInput("webrl grpo --dry-run num_generations=many", 2, "'many'", "num_generations", "valid integer"),
    BadInput("webrl grpo c.yaml --dry-run", 2, "'beta'", "c.yaml: unknown key", "lists the known ones", files={"c.yaml": "beta: 0.04\n"}),
    BadInput("webrl grpo c.yaml --dry-run", 2, "'model_id' and 'model_name'", "c.yaml", "keep one", files={"c.yaml": "model_id: a\nmodel_name: b\n"}),
    BadInput("webrl grpo --dry-run --model-id m temprature=1", 2, "'temprature'", "the command line: unknown key", "did you mean 'temperature'?"),
    BadInput("webrl grpo --dry-run --model-id m generation_batch_size=6", 2, "6", "generation_batch_size", "whole number of groups (num_generations 4)"),
    BadInput("webrl grpo --dry-run --model-id m 'rewards={outcome: 0}'", 2, "0", "rewards", "at least one weight must differ from 0"),
    BadInput("webrl grpo --dry-run --model-id m 'rewards={outcome: .nan}'", 2, "nan", "rewards.outcome", "finite"),
    BadInput("webrl grpo --dry-run --model-id m 'rewards={outcom: 1}'", 2, "outcom", "the command line: rewards.outcom", "must be 'outcome'"),
    BadInput("webrl grpo --dry-run --model-id m dataset_size=1", 2, "dataset_size 1", "num_generations 4", "fewer than 8"),
    BadInput("webrl grpo --dry-run --model-id m max_completion_length=5000", 2, "5000", "max_completion_length", "leaves no room for a prompt"),
    BadInput("webrl grpo --dry-run --model-id m system_prompt=Hello", 2, "system_prompt", "the command line", "needs prompt_format=browsergym"),
    BadInput("webrl grpo --dry-run --model-id m --image-size 512 --use-vllm", 2, "512", "image_size", "screenshots go through the engine of this process"),
    BadInput("webrl grpo --dry-run --model-id m --image-size 0 prompt_format=webrl", 2, "prompt_format=webrl", "screenshot", "use chat or browsergym"),
    BadInput("webrl grpo --dry-run --model-id m push_to_hf=true", 2, "push_to_hf", "nothing is uploaded from here", "hf upload"),
    BadInput("webrl grpo --dry-run --model-id m browsergym_url=nowhere", 2, "nowhere", "browsergym_url", "has the form http://host:port"),
    BadInput("webrl grpo --dry-run --model-id m max_staleness=1 temperature=0.7", 2, "temperature 0.7, top_p 1, top_k 0", "max_staleness 1 with", "known only for 1, 1 and 0"),
    BadInput("webrl grpo --dry-run --model-id m max_staleness=1 top_k=50", 2, "temperature 1, top_p 1, top_k 50", "max_staleness 1 with", "known only for 1, 1 and 0"),
    BadInput("webrl grpo --dry-run --model-id m max_staleness=1 top_p=0.9", 2, "temperature 1, top_p 0.9, top_k 0", "max_staleness 1 with", "known only for 1, 1 and 0"),
    BadInput("webrl grpo --dry-run 'vllm_extra_args=--seed 3'", 2, "vllm_extra_args", "the command line: ", "needs use_vllm=true"),
    BadInput("webrl grpo --dry-run --vllm-extra-args x", 2, "vllm_extra_args", "the command line: ", "needs use_vllm=true"),
    BadInput("webrl grpo --dry-run own.yaml seed=1", 2, "vllm_python", "own.yaml: ", "needs use_vllm=true", files={"own.yaml": "vllm_python: python3"}),
    BadInput("webrl grpo --dry-run own.yaml max_staleness=1", 2, "temperature 0.5", "own.yaml and the command line: ", "max_staleness 1", files={"own.yaml": "temperature: 0.5"}),
    BadInput("webrl grpo --dry-run own.yaml max_steps=-1", 2, "max_steps = -1", "the command line: ", "greater", files={"own.yaml": "temperature: 0.5"}),
    BadInput("webrl serve-model data/tiny/actor --port 99999 --dry-run", 2, "99999", "--port", "1 to 65535"),
    BadInput("webrl serve-model data/tiny/actor --phase 1 --dry-run", 2, "1", "--phase", "'data/tiny/actor' is not a run folder"),
    BadInput("webrl serve-model data/tiny/actor --host 0.0.0.0 --dry-run", 2, "0.0.0.0", "--host", "WEBRL_MODEL_TOKEN"),
    BadInput("webrl serve-env --viewport 0x0 --dry-run", 2, "'0x0'", "--viewport", "16 to 4096, such as 1280x720, or task"),
    BadInput("webrl serve-env --viewport 1280 --dry-run", 2, "'1280'", "--viewport", "WxH in pixels from 16 to 4096"),
    BadInput("webrl serve-env --dry-run", 2, "'9999x720'", "--viewport", "16 to 4096", variables={"BROWSERGYM_VIEWPORT_WIDTH": "9999"}),
    BadInput("webrl serve-env --screenshots jpeg --dry-run", 2, "'jpeg'", "--screenshots", "list"),
    BadInput("webrl serve-env --sessions 0 --dry-run", 2, "0", "--sessions", "1 to 4096"),
    BadInput("webrl serve-env --dry-run", 2, "0", "--sessions", "1 to 4096", variables={"MAX_CONCURRENT_ENVS": "0"}),
    BadInput("webrl serve-env --dry-run", 2, "'first'", "--port", "invalid int", variables={"BROWSERGYM_PORT": "first"}),
    BadInput("webrl serve-env --dry-run", 2, "=false", "BROWSERGYM_HEADLESS", "always headless", variables={"BROWSERGYM_HEADLESS": "false"}),
    BadInput("webrl serve-env --dry-run", 2, "=webarena", "BROWSERGYM_BENCHMARK", "is not served: WebArena tasks", variables={"BROWSERGYM_BENCHMARK": "webarena"}),
    BadInput("webrl serve-env --dry-run", 2, "=arcade", "BROWSERGYM_BENCHMARK", "is not served: ", variables={"BROWSERGYM_BENCHMARK": "arcade"}),
    BadInput("webrl record-demos --per-type 0 --dry-run", 2, "0", "--per-type", "of 1 or more"),
    BadInput("webrl record-demos --keep-all --dry-run", 2, "--keep-all", "webrl", "needs --by-hand"),
    BadInput("webrl record-demos --by-hand", 2, "DISPLAY=''", "--by-hand", "ssh -X", variables=_NO_DISPLAY),
    BadInput("webrl record-demos demo --by-hand rollout.observation=html", 2, "--by-hand", "webrl", "rollout.dialect=browsergym", variables=_NO_DISPLAY),
    BadInput("webrl record-demos demo --by-hand --per-type 3", 2, "--per-type", "webrl", "for the scripted experts", variables=_NO_DISPLAY),
    BadInput("webrl record-demos webarena_lite --by-hand", 2, "webarena_lite", "tasks.suite", "cannot be recorded by hand", variables=_NO_DISPLAY),
    BadInput("webrl record-demos demo tasks.train_sites=[miniwob.bisect-angle]", 2, "miniwob.bisect-angle", "tasks.suite=miniwob", "use --by-hand"),
    BadInput("webrl record-demos demo --out f", 2, "'f'", "--out", "is a file; name a folder", files={"f": ""}),
    BadInput("webrl sft demo", 2, "runs/demo/demos", "no demonstrations", "record some with `webrl record-demos`"),
    BadInput("webrl sft --data d.jsonl", 1, "d.jsonl", "no demonstration", "", files={"d.jsonl": ""}),
    BadInput("webrl sft --data d.jsonl --out out/new", 1, "'bad_demonstration': 1", "d.jsonl: no demonstration to imitate", "`instruction` and `steps`", files={"d.jsonl": '{"messages": []}\n'}),
    BadInput("webrl sft --data d --out out/new", 1, "d", "no demonstrations", "expected trajectories.jsonl", files={"d": a_folder}),
    BadInput("webrl sft --data nowhere --out out/new", 1, "nowhere", "No such file or directory (looked in", ""),
    BadInput("webrl sft --data d.jsonl --out f", 2, "'f'", "--out", "is a file; name a folder", files={"d.jsonl": "", "f": ""}),
    *(
        BadInput(f"webrl {command} demo --init data/tiny/actor {options} --dry-run", 2, value, option, fix, files={"d": a_folder})
        for command in ("sft", "train-orm")
        for options, value, option, fix in (
            ("--data a.jsonl --out .", "'.'", "--out", "has no name of its own; name a new folder"),
            ("--data a.jsonl --out data/tiny/actor", "data/tiny/actor", "--out", "is the model that the training starts from; name a new folder"),
            ("--data a.jsonl d/../a.jsonl", "/a.jsonl", "--data", "is named 2 times, and would count each time; name it once"),
        )
    ),
    BadInput("webrl status", 2, "no run folder below runs/", "webrl", "name one: webrl status RUN"),
    BadInput("webrl status empty", 2, "empty'", "is not a run folder", "neither config.yaml nor phase_00", files={"empty": a_folder}),
    BadInput("webrl serve-model empty", 2, "'empty'", "is not a run folder", "neither config.yaml nor phase_00", files={"empty": a_folder}),
    BadInput("webrl serve-model ./nowhere", 1, "'./nowhere'", "model folder", "does not exist"),
    BadInput("webrl serve-model data/tiny/actor demo miniwob", 2, "'demo', 'miniwob'", "one CONFIG at most", "overrides have the form key=value"),
    BadInput("webrl serve-model runs/r --phase 1", 2, "no actor of phase 1", "'runs/r'", "not trained yet", files=a_run("rollout")),
    BadInput("webrl serve-model data/tiny/actor rollout.engine.kind=openai", 2, "openai", "rollout.engine.kind", "weights of their own"),
    BadInput("webrl eval demo --against ./nosuch", 1, "'./nosuch'", "model folder", "does not exist"),
    BadInput("webrl eval demo --against ./nosuch --dry-run", 1, "'./nosuch'", "model folder", "does not exist"),
    BadInput("webrl view absent", 2, "'absent'", "no such folder", "name a run folder"),
    BadInput("webrl view f", 2, "'f'", "not a folder", "name a run folder", files={"f": ""}),
    BadInput("webrl view d", 2, "'d'", "is not a run folder", "neither config.yaml nor trajectories.jsonl", files={"d/x/labels.jsonl": ""}),
    BadInput("webrl view runs/r --port {port}", 2, "{port}", "cannot listen on 127.0.0.1", "choose another", files=a_run()),
    BadInput("webrl view runs/r --port 70000", 2, "70000", "--port", "1 to 65535", files=a_run()),
    BadInput("webrl view runs/r --host 'no such host'", 2, "no such host:8765", "cannot listen", "another --host", files=a_run()),
    BadInput("webrl view", 2, "runs/", "no run folder", "name"),
    BadInput("webrl report empty", 2, "empty'", "is not a run folder", "neither config.yaml nor phase_00", files={"empty": a_folder}),
    BadInput("webrl report nowhere", 2, "'nowhere'", "does not exist", "name a run folder"),
    BadInput("webrl report runs/r runs/r/.", 2, "'runs/r'", "named twice", "not compared with itself", files=a_run()),
    BadInput("webrl report runs/r --out d", 2, "'d'", "--out", "name a file in it", files=a_run("rollout") | {"d/x": ""}),
    *(
        BadInput("bash scripts/one_gpu.sh --dry-run", 2, f"{name}={value}", "one_gpu", f"is not a number {fix}", variables={name: value})
        for name, value, fix in (
            ("PER_TYPE", "0", "from 1 up"), ("EPISODES", "5k", "from 1 up"), ("JUDGE_DEMOS", "few", "from 0 up"), ("MINUTES", "soon", "of minutes"),
        )
    ),
    BadInput("bash scripts/one_gpu.sh --fast", 2, "--fast", "one_gpu: unknown option", "see --help"),
    BadInput("bash scripts/one_gpu.sh gemma", 2, "'gemma'", "no config", "shipped ones"),
    BadInput("bash scripts/one_gpu.sh --dry-run", 2, "JUDGE=maybe", "one_gpu", "yes nor no", variables={"JUDGE": "maybe"}),
    BadInput("bash scripts/one_gpu.sh demo web_example --dry-run", 2, "demo and web_example", "one_gpu", "one CONFIG"),
    BadInput("webrl train-orm --data nowhere.jsonl --out out/new", 1, "nowhere.jsonl", "No such file", ""),
    BadInput("webrl train-orm runs_dir=none", 2, "none/demo", "no episodes", "--data"),
    BadInput(f"{_GEN} --num_tasks ten", 2, "'ten'", "--num_tasks", "invalid int"),
    BadInput(f"{_GEN} --num_tasks=-3 --dry-run", 2, "-3", "generate.num_tasks", "greater than or equal to 0"),
    BadInput(f"{_GEN} --seed_num 0 --dry-run", 2, "0", "generate.num_seeds", "greater than or equal to 1"),
    BadInput(f"{_GEN} --temperature nan --dry-run", 2, "NaN", "generate.temperature", "finite"),
    BadInput(f"{_GEN} --temperature 0 --dry-run", 2, "0", "generate.temperature", "greater than 0"),
    BadInput(f"{_GEN} --seed=-1 --dry-run", 2, "-1", "seed", "greater than or equal to 0"),
    BadInput(f"{_GEN} --phase=-1 --run runs/r", 2, "'-1'", "--phase", "of 0 or more", files={"runs/r/config.yaml": "name: r"}),
    BadInput(f"{_GEN} --failures nowhere.jsonl", 2, "'nowhere.jsonl'", "--failures", "does not exist"),
    BadInput(f"{_GEN} --failures f --output_path f", 2, "'f'", "failures", "another --output_path", files={"f": ""}),
    BadInput(f"{_GEN} --rules nowhere.yaml --num_tasks 1", 2, "'nowhere.yaml'", "rules", "No such file"),
    BadInput(f"{_GEN} --setting generate.num_task=3", 2, "'generate.num_task'", "unknown key", "did you mean"),
    BadInput(f"{_GEN} --modle x", 2, "--modle", "gen_task", "unrecognized arguments"),
    *(BadInput(f"{_PROCESS} --stage {given}", 2, given, "--stage", "expected 1, 2 or both") for given in ("3", "one", "1 5", ",")),
    BadInput(f"{_PROCESS} --seed x", 2, "'x'", "--seed", "invalid int"),
    BadInput(f"{_PROCESS} --output_path out.pt", 2, "'out.pt'", "--output_path", "out.jsonl"),
    BadInput(f"{_PROCESS} --rollout_path nowhere --actor_path none", 1, "nowhere", "no such file", ""),
    BadInput(f"{_PROCESS} --rollout_path data/samples/experience --output_path o.jsonl --experience_paths nowhere --actor_path none", 1, "nowhere", "no such file", ""),
    BadInput(f"{_PROCESS} --stage 2 --rollout_path data/samples/experience --experience_paths data/samples/experience --output_path out/o.jsonl --actor_path none", 1, "out/o.jsonl", "no such file", "stage 2 adds history to the output of stage 1"),
    BadInput(f"{_TEST_DATA} --first_id x", 2, "'x'", "--first_id", "whole number"),
    BadInput(f"{_TEST_DATA} --first_id=-7", 2, "'-7'", "--first_id", "of 0 or more"),
    BadInput(f"{_TEST_DATA} --input nowhere.jsonl", 1, "nowhere.jsonl", "No such file", ""),
    # a job's shape
    BadInput(_NODES, 2, "'two'", "NNODES", "is not a number", variables={"NNODES": "two"}),
    BadInput(_NODES, 2, "0:0", "NNODES", "nodes", variables={"NNODES": "0"}),
    BadInput(_NODES, 2, "4:2", "NNODES", "nodes", variables={"NNODES": "4:2"}),
    BadInput(_NODES, 2, "MASTER_ADDR", "NNODES", "set it to node 0's address", variables={"NNODES": "2"}),
    BadInput(_NODES, 2, "rank 5", "NNODES", "count from 0", variables={"NNODES": "2", "NODE_RANK": "5", "MASTER_ADDR": "h"}),
    BadInput(_NODES, 2, "'http'", "MASTER_PORT", "is not a number", variables={"NNODES": "1", "MASTER_PORT": "http"}),
    BadInput(_NODES, 2, "99999", "MASTER_PORT", "1 to 65535", variables={"NNODES": "1", "MASTER_PORT": "99999"}),
    BadInput(_NODES, 2, "-1 processes", "NNODES", "at least 1", variables={"NPROC_PER_NODE": "-1"}),
    BadInput(_NODES, 2, "'many'", "NPROC_PER_NODE", "is not a number", variables={"NPROC_PER_NODE": "many"}),
    BadInput(_NODES, 2, "'x'", "MLP_WORKER_NUM", "is not a number", variables={"MLP_WORKER_NUM": "x"}),
    BadInput(_NODES, 2, "'['", "SLURM_JOB_NODELIST", "is not a node list", variables={"SLURM_JOB_ID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "["}),
    BadInput("bash run_multinode.sh", 2, "-1", "MAX_RESTARTS", "expected 0 or more", variables={"NPROC_PER_NODE": "2", "MAX_RESTARTS": "-1"}),
    BadInput("bash run_multinode.sh", 2, "'often'", "MAX_RESTARTS", "is not a number", variables={"NPROC_PER_NODE": "2", "MAX_RESTARTS": "often"}),
    BadInput("bash run_multinode.sh nowhere.yaml", 2, "'nowhere.yaml'", "config", "shipped ones"),
    BadInput("bash run_multinode.sh demo actor.lr=x --dry-run", 2, "'x'", "actor.lr", "valid number"),
)  # fmt: skip

_RUN = "webrl run demo --dry-run"
_GROUPS = "actor.objective=grpo rollout.num_generations=4 replay.strategy=none"
_FILE = "webrl run c.yaml --dry-run"
_WEB = "webrl run web_example --dry-run rollout.web"
_SEES = f"{_RUN} rollout.screenshots=true rollout.image_size=96 actor.objective=filtered_bc tasks.source=fresh"
_POINTS = f"{_SEES} rollout.show_text=false rollout.image_size=0"
_SERVED = "webrl run c.yaml --dry-run rollout.web"
_SERVES = {
    "c.yaml": """tasks: {suite: web}
rollout: {web: {start_urls: ["http://127.0.0.1:8000/"], train_files: [i.jsonl], serve: {command: [serve, "{port}"]}}}
""",
    "i.jsonl": '{"instruction": "Turn the light on.", "checks": [{"verify": "on"}]}\n',
}
"""A site with a server for every episode."""

CONFIGS = (
    # overrides
    BadInput(f"{_RUN} actor.lrr=1", 2, "'actor.lrr'", "the command line", "did you mean 'actor.lr'"),
    BadInput(f"{_RUN} rolout.max_steps=3", 2, "'rolout'", "the command line", "did you mean 'rollout'?"),
    BadInput(f"{_RUN} rollout.lora_rank=3", 2, "'rollout.lora_rank'", "the command line", "did you mean 'training.lora_rank'?"),
    BadInput(f"{_RUN} rollout.top_p=3", 2, "'rollout.top_p'", "the command line", "`webrl run --help rollout` lists"),
    BadInput(f"{_RUN} =5", 2, "'=5'", "override", "key.subkey=value"),
    BadInput(f"{_RUN} actor..lr=1", 2, "'actor.'", "the command line", "webrl run --help actor"),
    BadInput(f"{_RUN} actor=5", 2, "5", "actor", "section"),
    BadInput(f"{_RUN} actor.lr.x=1", 2, "actor.lr.x", "override", "is not a section"),
    BadInput(f"{_RUN} actor.lr=[", 2, "actor.lr=[", "override", "YAML"),
    BadInput(f"{_RUN} 'actor.lr=!!python/name:os.system'", 2, "!!python/name:os.system", "override", "YAML"),
    BadInput(f"{_RUN} 'name=\x07'", 2, "\\x07", "override", "YAML"),
    BadInput(f"{_RUN} actor.lr=", 2, "None", "actor.lr", "valid number"),
    BadInput(f"{_RUN} actor.lr=fast", 2, "'fast'", "actor.lr", "valid number"),
    BadInput(f"{_RUN} actor.lr=0", 2, "0", "actor.lr", "greater than 0"),
    BadInput(f"{_RUN} actor.lr=nan", 2, "nan", "actor.lr", "finite"),
    BadInput(f"{_RUN} actor.lr=.inf", 2, "inf", "actor.lr", "finite"),
    BadInput(f"{_RUN} actor.batch_size=2.5", 2, "2.5", "actor.batch_size", "valid integer"),
    *(
        BadInput(f"{_RUN} {key}={word}", 2, value, key, "expected a number")
        for key, word, value in (
            ("actor.batch_size", "true", "True"), ("actor.max_kl", "yes", "True"), ("filter.max_tasks", "true", "True"), ("actor.lr", "on", "True"),
            ("num_phases", "no", "False"),
        )
    ),
    BadInput(f"{_RUN} runs_dir=[a]", 2, "['a']", "runs_dir", "expected a path"),
    BadInput(f"{_RUN} rollout.viewport=[1,2,3]", 2, "[1, 2, 3]", "rollout.viewport", "at most 2 items, not 3"),
    BadInput(f"{_RUN} num_phases=x", 2, "'x'", "num_phases", "valid integer"),
    *(
        BadInput(f"{_RUN} {key}=99999999", 2, "99999999", key, "less than or equal to 50000")
        for key in ("tasks.num_seed_tasks", "tasks.num_eval_tasks", "tasks.num_heldout_tasks", "num_phases")
    ),
    BadInput(f"{_RUN} actor.beta=0", 2, "0", "actor.beta", "greater than"),
    BadInput(f"{_RUN} actor.beta=-1", 2, "-1", "actor.beta", "greater than"),
    BadInput(f"{_RUN} actor.curvature_floor=0", 2, "0", "actor.curvature_floor", "greater than"),
    BadInput(f"{_RUN} actor.curvature_floor=x", 2, "'x'", "actor.curvature_floor", "valid number"),
    BadInput(f"{_RUN} actor.betas=[0.9]", 2, "[0.9]", "actor.betas", "missing"),
    BadInput("webrl run gemma3_270m_arena --dry-run tasks.train_sites=[arena.nosuch]", 2, "'arena.nosuch'", "task type", "nearest"),
    BadInput(f"{_RUN} actor.betas=[2,3]", 2, "2", "actor.betas", "less than 1"),
    BadInput(f"{_RUN} actor.objective=ppo", 2, "'ppo'", "actor.objective", "'webrl'"),
    BadInput(f"{_RUN} actor.objective=grpo", 2, "rollout.num_generations=1", "actor.objective=grpo", "rollout.num_generations=4"),
    BadInput(f"{_RUN} actor.objective=grpo rollout.num_generations=8", 2, "replay.strategy=perplexity", "actor.objective=grpo", "replay.strategy=none"),
    BadInput(f"{_RUN} {_GROUPS} rollout.temperature=0", 2, "rollout.temperature=0: greedy", "actor.objective=grpo", "set rollout.temperature=1"),
    BadInput(f"{_RUN} {_GROUPS} rollout.policy=expert", 2, "rollout.policy=expert", "actor.objective=grpo", "set rollout.policy=actor"),
    BadInput(f"{_RUN} actor.scale_rewards=std", 2, "'std'", "actor.scale_rewards", "'none', 'group' or 'batch'"),
    BadInput(f"{_RUN} rollout.num_generations=0", 2, "0", "rollout.num_generations", "greater than or equal to 1"),
    BadInput(f"{_RUN} actor.engine=zero9", 2, "'zero9'", "actor.engine", "zero3"),
    BadInput(f"{_RUN} training.precision=fp8", 2, "'fp8'", "the command line: training.precision", "'fp32' or 'bf16'"),
    BadInput(f"{_RUN} evaluate.temperature=[1,1]", 2, "[1, 1]", "evaluate", "each once"),
    BadInput(f"{_RUN} evaluate.temperature=[]", 2, "[]", "evaluate.temperature", "at least 1"),
    BadInput(f"{_RUN} evaluate.temperature=true", 2, "True", "evaluate.temperature", "expected a list"),
    BadInput(f"{_RUN} evaluate.temperature=-1", 2, "-1", "the command line: evaluate.temperature.0", "greater than or equal to 0"),
    BadInput(f"{_RUN} actor.precision=fp16", 2, "'fp16'", "actor.precision", "'bf16'"),
    BadInput(f"{_RUN} rollout.env=venus", 2, "'venus'", "rollout.env", "'openenv'"),
    BadInput(f"{_RUN} rollout.env=openenv", 2, "openenv", "rollout.urls", "rollout.urls=["),
    BadInput(f"{_RUN} rollout.env=openenv rollout.urls=[ftp://h]", 2, "'ftp://h'", "rollout.urls", "http://"),
    *(
        BadInput(f"{_RUN} 'rollout.allowed_hosts=[\"{host}\"]'", 2, f"'{host}'", "rollout.allowed_hosts.0", "expected a host: example.org, ")
        for host in ("a,*", "*.example.org", "http://example.org/", "a b", "[::1", "é.example", "a:b", "")
    ),
    BadInput(f"{_RUN} rollout.num_workers=0", 2, "0", "rollout.num_workers", "greater than or equal to 1"),
    BadInput(f"{_RUN} rollout.env=openenv rollout.urls=[127.0.0.1:9]", 2, "'127.0.0.1:9'", "rollout.urls", "has the form http://host:port"),
    BadInput(f"{_RUN} rollout.urls=http://h", 2, "'http://h'", "rollout.urls", "list"),
    *(
        BadInput(f"{command} rollout.engine.kind=openai rollout.engine.urls=[http://h/v1]", 2, "openai", "rollout.engine.kind", "set rollout.engine.kind=vllm")
        for command in (_RUN, "webrl run demo", "webrl accept demo --dry-run")
    ),
    BadInput(f"{_RUN} rollout.engine.kind=openai", 2, "openai", "rollout.engine.kind", "rollout.engine.urls=["),
    BadInput(f"{_RUN} rollout.engine.kind=openai rollout.engine.urls=[localhost]", 2, "'localhost'", "rollout.engine.urls", "http://"),
    BadInput(f"{_RUN} rollout.engine.kind=tgi", 2, "'tgi'", "rollout.engine.kind", "'vllm'"),
    BadInput(f"{_RUN} filter.value_low=0.9 filter.value_high=0.1", 2, "0.9", "filter: value_low", "exceeds value_high 0.1"),
    BadInput(f"{_RUN} replay.perplexity_low=3 replay.perplexity_high=2", 2, "3", "replay: perplexity_low", "exceeds perplexity_high 2"),
    BadInput(f"{_RUN} label.judge=environment", 2, "label.judge=environment", "demo", "needs tasks.source=fixed or fresh"),
    BadInput(f"{_RUN} label.judge=llm label.system_prompt=x.txt", 2, "'x.txt'", "label: system_prompt", "is for an ORM: it needs judge=orm"),
    BadInput("webrl label demo label.system_prompt=blank.txt", 2, "blank.txt", "label.system_prompt", "is empty; the released", files={"blank.txt": " \n"}),
    BadInput(f"{_RUN} models.prompt_format=webrl models.prompt=brief", 2, "prompt=brief", "models", "needs prompt_format=chat"),
    BadInput(f"{_RUN} models.prompt=rounds models.max_prompt_tokens=99", 2, "prompt=rounds", "models", "set max_prompt_tokens to 2400"),
    BadInput(f"{_RUN} models.prompt=rounds models.max_prompt_tokens=2400 rollout.dialect=webrl", 2, "models.prompt=rounds", "rollout.dialect=webrl", "set models.prompt=examples"),
    BadInput(f"{_RUN} rollout.show_text=false rollout.screenshots=true rollout.image_size=96", 2, "image_size=96", "show_text=false", "actions use the screenshot's pixels"),
    BadInput(f"{_RUN} models.device=gpu", 2, "'gpu'", "models.device", "expected auto, cpu, cuda"),
    BadInput(f"{_RUN} models.dtype=int8", 2, "'int8'", "models.dtype", "'bfloat16'"),
    BadInput(f"{_RUN} models.orm=none", 2, "'none'", "models.orm", "leave it out"),
    BadInput(f"{_RUN} rollout.upload_dir=/nope", 2, "'/nope'", "rollout.upload_dir", "no such folder"),
    BadInput(f"{_RUN} models.actor=[a,b]", 2, "['a', 'b']", "models.actor", "valid string"),
    BadInput(f"{_RUN} tasks.suite=webvoyager", 2, "'webvoyager'", "tasks.suite", "'miniwob'"),
    BadInput(f"{_RUN} tasks.train_sites=[miniwob.clik-button]", 2, "'miniwob.clik-button'", "tasks.train_sites", "click-button"),
    BadInput(f"{_RUN} tasks.train_sites=[miniwob.click-link] tasks.heldout_sites=[miniwob.click-link]", 2, "'miniwob.click-link'", "tasks.heldout_sites", "leave it in one"),
    BadInput(f"{_RUN} tasks.train_sites=[miniwob.click-dialog]", 2, "'miniwob.click-dialog'", "tasks.train_sites", "heldout_sites"),
    BadInput(f"{_RUN} tasks.shares=learnability", 2, "shares=learnability", "the command line: tasks", "needs source=fresh"),
    BadInput(f"{_RUN} tasks.suite=[miniwob,arena]", 2, "['miniwob', 'arena']", "tasks.suite", "name of one suite"),
    BadInput(f"{_RUN} trackers=[mlflow]", 2, "'mlflow'", "trackers", "'wandb'"),
    BadInput(f"{_RUN} rollout.webarena.sites.moon=http://h", 2, "'moon'", "rollout.webarena.sites", "'shopping'"),
    BadInput(f"{_RUN} 'rollout.webarena.accounts={{gitlab: {{username: a}}}}'", 2, "gitlab", "rollout.webarena.accounts.gitlab.password", "it is missing"),
    BadInput(f"{_RUN} name=../../etc", 2, "'../../etc'", "name", "letters, digits"),
    BadInput(f"{_RUN} name=..", 2, "'..'", "name", "letters, digits"),
    BadInput(f"{_RUN} name=''", 2, "None", "name", "valid string"),
    BadInput(f"{_RUN} --seed 99999999999999999999", 2, "99999999999999999999", "seed", "less than"),
    BadInput(f"{_RUN} rollout.max_steps=1e400", 2, "1e400", "rollout.max_steps", "valid integer"),
    *(
        BadInput(f"webrl {command} rollout.temperature=0.7", 2, "0.7", "rollout.temperature", "leave it out")
        for command in ("run demo", "run demo --dry-run", "rollout demo", "accept demo --dry-run")
    ),
    *(
        BadInput(f"{_RUN} {key}={word}", 2, f"'{key}={word}'", f"column {column}: ", "would be read in base 8 or 60; write a decimal")
        for key, word, column in (("seed", "010", 1), ("actor.lr", "-010", 1), ("actor.lr", "1:30", 1), ("actor.lr", "1:30.5", 1))
    ),
    BadInput(f"{_RUN} 'actor.betas=[1, 007]'", 2, "007", "column 5: ", "would be read in base 8 or 60; write a decimal"),
    BadInput(_FILE, 2, "010", "c.yaml: not valid YAML: line 2, column 9: ", "would be read in base 8 or 60; write a decimal", files={"c.yaml": "actor:\n  lr:   010\n"}),
    BadInput(f"{_RUN} 'runs_dir=$NOPE/x'", 2, "'$NOPE/x'", "runs_dir", "no such environment variable: $NOPE/x"),
    *(
        BadInput(f"{_RUN} {key}={word}", 2, f"'{word}'", f"the command line: {key}", "for none, write null")
        for key, word in (("actor.max_kl", "none"), ("rollout.upload_dir", "None"), ("rollout.viewport", "nil"))
    ),
    *(
        BadInput(f"{_RUN} rollout.settle_cap_s={cap}", 2, f"settle_cap_s={cap}", "step_timeout_s=30", "set a longer step_timeout_s")
        for cap in (30, 40)
    ),
    # screenshots
    BadInput(f"{_SEES} rollout.screenshots=false", 2, "image_size=96", "rollout", "what the model sees must be saved: set screenshots=true"),
    *(
        BadInput(f"{_SEES} {option}", 2, value, "rollout.image_size shows the actor screenshots", fix)
        for option, value, fix in (
            ("rollout.engine.kind=openai rollout.engine.urls=[http://127.0.0.1:9/v1]", "rollout.engine.kind=openai: not yet", "set rollout.engine.kind=transf"),
            ("rollout.engine.kind=vllm", "rollout.engine.kind=vllm: not yet", "set rollout.engine.kind=transformers"),
            ("models.prompt_format=webrl", "models.prompt_format=webrl", "has no place for one"),
            ("models.enable_thinking=true", "models.enable_thinking=true: not yet", "set models.enable_thinking=false"),
        )
    ),
    BadInput(f"{_POINTS} rollout.dialect=webrl", 2, "dialect=webrl", "rollout.show_text=false", "set dialect=browsergym"),
    BadInput(f"{_POINTS} tasks.source=curriculum", 2, "the curriculum reads the pages", "rollout.show_text=false", "set tasks.source=fresh"),
    # one's own site
    BadInput(f"{_SERVED}.serve.command=[serve]", 2, "['serve']", "rollout.web.serve.command", "no argument has {port}", files=_SERVES),
    BadInput(f"{_SERVED}.reset.url=http://127.0.0.1:8000/reset", 2, "reset", "c.yaml and the command line: rollout.web", "reset cannot be combined with serve", files=_SERVES),
    BadInput(f"{_SERVED}.database=sqlite:////tmp/a.db", 2, "/tmp/a.db", "rollout.web", "database cannot be combined with serve", files=_SERVES),
    BadInput(f"{_SERVED}.login.command=[a]", 2, "['a']", "rollout.web", "login cannot be combined with serve", files=_SERVES),
    BadInput(f"{_SERVED}.start_urls=[http://a.test/,http://b.test/]", 2, "http://b.test/", "rollout.web", "one http:// host and port", files=_SERVES),
    BadInput(f"{_SERVED}.train_files=[]", 2, "nothing is served outside episodes", "rollout.web.serve", "name rollout.web.train_files", files=_SERVES),
    BadInput(f"{_SERVED}.read_only=false", 1, "verify", "i.jsonl:1", "needs rollout.web.verify", files=_SERVES),
    BadInput(f"{_WEB}.start_urls=[]", 2, "start pages", "web_example.yaml and the command line: tasks.suite=web", "rollout.web.start_urls=["),
    BadInput(f"{_WEB}.start_urls=[example.org]", 2, "'example.org'", "rollout.web.start_urls.0", "http://host:port/path"),
    BadInput(f"{_WEB}.start_urls=[http://ann:pw12@example.org/]", 2, "'http://***@example.org/'", "rollout.web.start_urls.0", "rollout.web.login"),
    BadInput(f"{_WEB}.login.basic=ann:pw12", 2, "***", "rollout.web.login.basic", "expected options with values"),
    BadInput(f"{_WEB}.login.basic=\"{{user: 'a:b', password: pw12}}\"", 2, "***", "rollout.web.login.basic.user", "give user and password separately"),
    BadInput(f"{_WEB}.login.command=[a]", 2, "'/login'", "rollout.web.login", "form and command: choose one"),
    BadInput(f"{_WEB}.login.form.url=\"'http://[::1'\"", 2, "'http://[::1'", "rollout.web.login.form.url", "http://host:port/path"),
    BadInput(f"{_WEB}.reset.command=[a]", 2, "['a']", "rollout.web.reset", "url and command: choose one"),
    BadInput(f"{_WEB}.database=mysql://u@h/d", 2, "'mysql://***@h/d'", "rollout.web.database", "sqlite:///FILE"),
    BadInput(f"{_WEB}.forbidden_actions=[clik]", 2, "'clik'", "rollout.web.forbidden_actions", "known: noop"),
    BadInput(f"{_WEB}.reset.every=episode", 2, "every=episode", "rollout.web.reset", "rollout.envs_per_worker=1"),
    BadInput(f"{_WEB}.max_actions_per_s=0.1", 2, "0.1", "rollout.web.max_actions_per_s", "use fewer"),
    BadInput(f"{_WEB}.forbidden_urls=\"['(a']\"", 2, "'(a'", "rollout.web.forbidden_urls.0", "not a regular expression"),
    BadInput("webrl run web_example --dry-run tasks.source=fresh", 2, "source=fresh", "tasks.suite=web", "tasks made from a seed"),
    BadInput("webrl serve-env web_example --dry-run", 2, "web", "tasks.suite=web", "use `webrl run`"),
    # files
    *(
        BadInput(f"webrl {command} demo filter.rules=nowhere.yaml", 2, "'nowhere.yaml'", "feasibility rules", "No such file")
        for command in ("run", "gen-tasks", "filter-tasks")
    ),
    *(
        BadInput(f"webrl {command} demo label.system_prompt=none.txt", 2, "none.txt", "label.system_prompt", "`system` in build_rm_data")
        for command in ("run", "label", "train-orm")
    ),
    BadInput("webrl run hostile/list_at_top.yaml", 2, "list", "hostile/list_at_top.yaml", "mapping"),
    BadInput("webrl run hostile/tabs.yaml", 2, "\\t", "hostile/tabs.yaml", "line 2"),
    BadInput("webrl run hostile/latin1.yaml", 2, "0xe9", "hostile/latin1.yaml", "UTF-8"),
    BadInput("webrl run hostile/utf16.yaml", 2, "0xff", "hostile/utf16.yaml", "UTF-8"),
    BadInput("webrl run hostile/nul.yaml", 2, "#x0000", "hostile/nul.yaml", "YAML"),
    BadInput("webrl run hostile/code_tag.yaml", 2, "python/object/apply:os.system", "hostile/code_tag.yaml", "YAML"),
    BadInput("webrl run hostile/deep.yaml --dry-run", 2, "nested", "hostile/deep.yaml", "levels"),
    BadInput("webrl run hostile/twice.yaml --dry-run", 2, "'lr'", "hostile/twice.yaml", "only one"),
    BadInput("webrl run hostile/two_documents.yaml", 2, "document", "hostile/two_documents.yaml", "YAML"),
    BadInput("webrl run hostile/unclosed.yaml", 2, "expected", "hostile/unclosed.yaml", "line"),
    BadInput(_FILE, 2, "'nowhere.yaml'", "c.yaml: base", "no such file", files={"c.yaml": "base: nowhere.yaml"}),
    BadInput(_FILE, 2, "'keep_models'", "c.yaml: not valid YAML: line 2", "was it cut off", files={"c.yaml": "seed: 1\nkeep_models:\n"}),
    BadInput(_FILE, 2, "['a', 'b']", "c.yaml: base", "no such file", files={"c.yaml": "base: [a, b]"}),
    BadInput(_FILE, 2, "xxx", "c.yaml: base", "no such file", files={"c.yaml": f"base: {'x' * 5000}"}),
    BadInput(_FILE, 2, "its own base", "c.yaml", "a config cannot", files={"c.yaml": "base: c.yaml"}),
    BadInput(f"{_FILE} replay.perplexity_low=9", 2, "9", "c.yaml and the command line: replay: perplexity_low", "exceeds", files={"c.yaml": "seed: 1"}),
    BadInput(_FILE, 2, "'actor.lr'", "c.yaml: unknown key", "write it as actor: {lr: …}", files={"c.yaml": "actor.lr: 1\n"}),
    BadInput(_FILE, 2, "'rollout.engine.kind'", "c.yaml: unknown key", "write it as rollout: {engine: {kind: …}}", files={"c.yaml": "rollout.engine.kind: 1\n"}),
    BadInput(_FILE, 2, "'dmo'", "c.yaml: base", "no such file in ., and no shipped config", files={"c.yaml": "base: dmo\n"}),
    BadInput(_FILE, 2, "'lr'", "line 2, column 3", "is given twice; keep only one", files={"c.yaml": "actor: {lr: 0.5, epochs: 2,\n  lr: 0.25}\n"}),
    BadInput(_FILE, 2, "'actr'", "c.yaml", "did you mean 'actor'", files={"c.yaml": "actr: {lr: 1}"}),
    BadInput(_FILE, 2, "None", "c.yaml: actor", "section", files={"c.yaml": "actor:\nseed: 1\n"}),
    BadInput(_FILE, 2, "1", "c.yaml", "Keys should be strings", files={"c.yaml": "1: 2"}),
    BadInput(_FILE, 2, "datetime.date(2024, 1, 2)", "c.yaml: name", "valid string", files={"c.yaml": "name: 2024-01-02"}),
    BadInput(_FILE, 2, "'a\\x00b'", "c.yaml: runs_dir", "NUL", files={"c.yaml": 'runs_dir: "a\\0b"'}),
    BadInput(_FILE, 2, "b'\\xff'", "c.yaml: name", "valid", files={"c.yaml": "name: !!binary /w=="}),
)  # fmt: skip
