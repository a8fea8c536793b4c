"""The notebook runs from top to bottom."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "first_hour.ipynb"


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
