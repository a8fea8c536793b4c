"""Our declarations of OpenEnv's message types are those of the package that is installed, under either of its names."""

import importlib.util
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from webrl_serve.openenv import messages

OURS = {
    "Action": messages.BrowserGymAction,
    "Observation": messages.BrowserGymObservation,
    "State": messages.BrowserGymState,
}
RELEASES = sorted(Path(f"{sys.prefix}-openenv").glob("openenv*==*"))
"""`make engines` fetches several."""


def types_of(package: Path | None) -> dict[str, type[BaseModel]]:
    """The classes of `openenv.core.env_server.types`; its file alone, because the package imports an MCP server."""
    if package is None:
        spec = importlib.util.find_spec("openenv")
        assert spec is not None
        assert spec.submodule_search_locations
        package = Path(spec.submodule_search_locations[0]).parent
    name = "openenv_types_under_test"
    spec = importlib.util.spec_from_file_location(name, package / "openenv" / "core" / "env_server" / "types.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # pydantic resolves annotations through it
    spec.loader.exec_module(module)
    return vars(module)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("package", [None, *(p for p in RELEASES if (p / "openenv" / "core").is_dir())], ids=str)
def test_a_message_type_begins_as_openenvs(package: Path | None, name: str) -> None:
    ours, theirs = OURS[name], types_of(package)[name]
    mine, other = ours.model_json_schema(), theirs.model_json_schema()
    assert set(mine.get("required", [])) - {"action_str"} == set(other.get("required", []))
    assert other["properties"]
    assert {key: mine["properties"].get(key) for key in other["properties"]} == other["properties"]
    assert ours.model_config.get("extra") == theirs.model_config.get("extra")
    assert ours.model_config.get("validate_assignment") == theirs.model_config.get("validate_assignment")
