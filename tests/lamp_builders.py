"""A site that every episode has a server of its own of: one switch, a name to fill in, and a program that verifies."""

import json
from pathlib import Path

SERVER = """
import http.server, json, os, socketserver, sys

state = None

class Handler(http.server.SimpleHTTPRequestHandler):
    def do_PUT(self):
        global state
        state = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, {"status": "ok"})

    def do_GET(self):
        if self.path != "/api/state":
            return super().do_GET()
        self.answer(200, state) if state is not None else self.answer(404, {"error": "no state"})

    def answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

os.chdir(sys.argv[1])
server = Server(("127.0.0.1", int(sys.argv[2])), Handler)
print("listening on", *server.socket.getsockname(), flush=True)
server.serve_forever()
"""

PAGE = """
<!doctype html><title>Lamp</title><h1>Lamp</h1>
<label><input type="checkbox" id="on"> Light</label>
<label>Name <input id="name"></label><button id="save">Save</button>
<script>
const state = {on: false, name: ""};
const push = () => fetch("/api/state", {method: "PUT", body: JSON.stringify(state)});
document.getElementById("on").onchange = event => { state.on = event.target.checked; push(); };
document.getElementById("save").onclick = () => { state.name = document.getElementById("name").value; push(); };
push();
</script>
"""

VERIFY = """
import sys, requests

url, check = sys.argv[1:]
state = requests.get(f"{url}/api/state", timeout=5).json()
try:
    passed = {"on": lambda: state["on"] is True, "named": lambda: state["name"] == "Aladdin"}[check]()
    print("pass" if passed else f"fail: the lamp is {state}")
except KeyError as error:
    print(f"fail: KeyError: {error}")
"""
CONFIG = """
name: lamp
num_phases: 1
tasks: {{suite: web, num_seed_tasks: 1, num_eval_tasks: 2, source: fixed}}
rollout:
  web:
    name: lamp
    start_urls: ["http://127.0.0.1:8000/"]
    train_files: [{folder}/lamp_train.jsonl]
    heldout_files: [{folder}/lamp_heldout.jsonl]
    serve: {{command: ["{{python}}", {folder}/server.py, {folder}, "{{port}}"]}}
    verify: ["{{python}}", {folder}/verify.py, "{{url}}", "{{check}}"]
    check_timeout_s: 60
  envs_per_worker: 4
  max_steps: 30
"""


def write_lamp(folder: Path) -> Path:
    """The site and its config, which is given; one task to train on, two held out (the last one's check is unknown)."""
    tasks = {
        "train": [("light", "Turn the light on.", "on")],
        "heldout": [("name", "Call the lamp Aladdin.", "named"), ("break", "Break it.", "nothing")],
    }
    for name, entries in tasks.items():
        lines = [json.dumps({"id": i, "instruction": text, "checks": [{"verify": v}]}) for i, text, v in entries]
        (folder / f"lamp_{name}.jsonl").write_text("\n".join(lines) + "\n")
    files = {"index.html": PAGE, "server.py": SERVER, "verify.py": VERIFY, "lamp.yaml": CONFIG.format(folder=folder)}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "lamp.yaml"
