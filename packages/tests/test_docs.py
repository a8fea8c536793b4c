"""The documentation: the reference says what the code has, links lead somewhere, nothing is fetched from elsewhere."""

import html
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from mkdocs.exceptions import PluginError

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
import docs_reference
import docs_site

from webrl.cli import STAGES, command_names
from webrl.config import describe_options
from webrl_arena.templates import all_templates

ROOT = Path(__file__).resolve().parents[2]
PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))


@pytest.fixture(scope="module")
def options() -> dict[str, tuple[str, str]]:
    """What the page of options holds: option -> (type and default, description)."""
    entries = re.findall(r"^`([\w.]+)` · (.*)\n: {3}(.*)$", docs_reference.options_page(), re.M)
    plain = str.maketrans("", "", "`\\")
    return {key: (about.translate(plain), html.unescape(text).translate(plain)) for key, about, text in entries}


def test_every_option_has_an_entry_with_its_type_default_and_description(options):
    for option in describe_options():
        for key in option.keys:
            about, description = options[key]
            assert description == option.description.replace("`", ""), key
            assert " · default " in about, key
    assert options["rollout.num_workers"] == ("whole number, at least 1 · default 1", "browser worker processes")
    assert options["replay.perplexity_low"][0] == "number · default 1.05263"
    assert options["actor.beta"][0] == "number, above 0 or null · default null"
    assert options["tasks.source"][0] == "curriculum fixed fresh · default curriculum"


def test_options_below_one_that_is_not_set_have_entries_too(options):
    assert options["rollout.web.login.form.url"][0] == "text · required"
    assert options["rollout.webarena.accounts.NAME.password"][0] == "text · required"


def test_every_command_has_its_help_and_leads_to_its_options():
    page = docs_reference.commands_page()
    for name in command_names():
        assert f"\n## webrl {name}\n" in page
        assert f"\nusage: webrl {name} " in page
    for name, (_, sections) in STAGES.items():
        assert set(docs_reference.command_help(name)[1]) == set(sections) or name == "run"
    assert "config options" not in page
    assert "| [`webrl run`](#webrl-run) |" in page


def test_the_page_of_arena_tasks_lists_every_template():
    page = docs_reference.arena_page()
    assert f"The {len(all_templates())} task templates" in page
    for template in all_templates():
        name = f"`{template.key.removeprefix('arena.')}`{' **h**' if template.held_out else ''}"
        assert f"| {name} | {template.wordings[0]} |" in page


def test_a_page_that_would_fetch_from_elsewhere_is_refused():
    same = '<script src="assets/a.js"></script><a href="https://example.org">there</a>'
    assert docs_site.on_post_page(same, PAGE, None) == same
    with pytest.raises(PluginError, match=r"index\.md.*fetch from elsewhere.*cdn\.example"):
        docs_site.on_post_page('<link rel="stylesheet" href="//cdn.example/a.css">', PAGE, None)


def test_equations_and_diagrams_need_no_script():
    equation = '<span class="arithmatex">\\(a &lt; \\beta\\)</span>'
    diagram = '<pre class="mermaid"><code>flowchart LR\n a --&gt; b</code></pre>'
    page = docs_site.on_page_content(equation + diagram, PAGE, None, None)
    assert "<mi>&#x003B2;</mi>" in page
    assert "<svg" in page
    assert "arithmatex" not in page
    assert "<pre" not in page
