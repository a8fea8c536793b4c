#!/usr/bin/env bash
# Install BrowserGym's WebArena tasks and evaluators into a virtual environment: `make webarena`.
#
#   scripts/install_webarena.sh [PYTHON]        (default: .venv/bin/python)
#   CONSTRAINTS=constraints.txt pins what the second step may still have to install
#
# libwebarena pins beartype 0.12 and, through text-generation, huggingface-hub < 1, which no resolver can
# combine with transformers 5. The code runs with the newer versions, so these packages go in without their
# dependencies; what they import is either in the core already or listed here.
# `import browsergym.webarena` wants nltk's punkt_tab and downloads it when it is missing. Where the download
# is not reachable an untrained sentence model takes its place (docs/webarena.md says what that changes).
set -euo pipefail

python=${1:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || { echo "no Python at '$python': run 'make install' first" >&2; exit 1; }

log=$(mktemp)
install() { # pip's resolver complains about the pins that are ignored on purpose: show its words only on failure
    "$python" -m pip install --quiet --disable-pip-version-check "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}
install --no-deps browsergym-core==0.14.3 libwebarena==0.0.4 browsergym-webarena==0.14.3 browsergym-webarenalite==0.14.3 \
    text-generation==0.7.0 nltk==3.10.4 aiolimiter==1.3.0
install ${CONSTRAINTS:+-c "$CONSTRAINTS"} aiohttp beartype beautifulsoup4 click gymnasium joblib openai pyparsing \
    regex requests tiktoken tqdm
rm -f "$log"

"$python" - <<'EOF'
import contextlib
import io
import os
import sys
from pathlib import Path

import nltk

def found() -> bool:
    try:
        nltk.data.find("tokenizers/punkt_tab/english")
    except LookupError:
        return False
    return True

target = Path(sys.prefix) / "nltk_data"
if not found():
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            nltk.download("punkt_tab", download_dir=str(target), quiet=True, raise_on_error=True)
    except Exception as error:
        print(f"punkt_tab could not be downloaded ({str(error)[:60]}); an untrained sentence model stands in")
        folder = target / "tokenizers" / "punkt_tab" / "english"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("collocations.tab", "sent_starters.txt", "ortho_context.tab"):
            (folder / name).write_text("")
        (folder / "abbrev_types.txt").write_text("dr\nmr\nmrs\nms\nst\nvs\ne.g\ni.e\nu.s\n")

for name in ("SHOPPING", "SHOPPING_ADMIN", "REDDIT", "GITLAB", "WIKIPEDIA", "MAP", "HOMEPAGE"):
    os.environ.setdefault(f"WA_{name}", f"http://{name.lower().replace('_', '-')}.invalid")
    os.environ.setdefault(name, os.environ[f"WA_{name}"])
import browsergym.webarena
import browsergym.webarenalite
from browsergym.webarenalite.evaluators import evaluator_router  # noqa: F401

lite, full = len(browsergym.webarenalite.ALL_WEBARENA_TASK_IDS), len(browsergym.webarena.ALL_WEBARENA_TASK_IDS)
print(f"WebArena-Lite: {lite} tasks, WebArena: {full} tasks. Next: docs/webarena.md")
EOF
