"""The notebook: it runs from top to bottom, and what is committed holds small outputs."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "first_hour.ipynb"


def test_the_notebook_is_committed_with_small_outputs():
    assert NOTEBOOK.stat().st_size < 1_000_000
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    kinds = [{output["output_type"] for output in cell["outputs"]} for cell in cells]
    assert not any("error" in kind for kind in kinds)
    assert sum("display_data" in kind or "execute_result" in kind for kind in kinds) >= 3


@pytest.mark.browser
@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is a package of the extra dev")
    nbformat = pytest.importorskip("nbformat", reason="nbformat comes with nbclient")
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parent.parent))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=1500, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    written = "\n".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", ()))
    assert "phase 1:" in written
    assert "P(YES) = " in written
