"""An app by WebArena-Infinity's protocol, written for the tests: one switch, and a name to fill in."""

import json
from pathlib import Path

SERVER = """
import http.server, json, socketserver, sys

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

server = Server(("", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
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

VERIFIER = """
import requests

def verify(server_url: str) -> tuple[bool, str]:
    state = requests.get(f"{{server_url}}/api/state", timeout=5).json()
    return {passes}, f"the lamp is {{state}}"
"""


def lamp(folder: Path) -> Path:
    """The app in `folder`; one task to train on, two held out (the last one's verifier raises)."""
    (folder / "index.html").parent.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "server.py").write_text(SERVER)
    task(folder, "function", "task_1", "Turn the light on.", "state['on'] is True")
    task(folder, "real", "task_1", "Call the lamp Aladdin.", "state['name'] == 'Aladdin'")
    task(folder, "real", "task_2", "Break it.", "state['nothing']['there']")
    return folder


def task(folder: Path, kind: str, name: str, instruction: str, passes: str) -> None:
    verifier = folder / f"{kind}-tasks" / f"{name}.py"
    verifier.parent.mkdir(exist_ok=True)
    verifier.write_text(VERIFIER.format(passes=passes))
    listed = folder / f"{kind}-tasks.json"
    tasks = json.loads(listed.read_text()) if listed.exists() else []
    entry = {"id": name, "instruction": instruction, "verify": f"{kind}-tasks/{name}.py"}
    listed.write_text(json.dumps([*tasks, entry | ({"difficulty": "easy"} if kind == "real" else {})]))
