"""OpenEnv's message types, `openenv.core.env_server.types`, without what surrounds them.

By its name the module would run `openenv.core` first, which imports Gradio and an MCP server: ten seconds of CPU for
classes that need pydantic alone. Its file is therefore loaded by itself.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

_NAME = "openenv.core.env_server.types"


def _load() -> ModuleType:
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    package = find_spec("openenv")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'openenv'", name="openenv")
    path = Path(package.submodule_search_locations[0], *_NAME.split(".")[1:]).with_suffix(".py")
    spec = spec_from_file_location(__name__ + "_types", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {str(path)!r}", name=_NAME)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic resolves annotations through it
    spec.loader.exec_module(module)
    return module


_types = _load()
Action = _types.Action
EnvironmentMetadata = _types.EnvironmentMetadata
HealthResponse = _types.HealthResponse
Observation = _types.Observation
ResetResponse = _types.ResetResponse
SchemaResponse = _types.SchemaResponse
State = _types.State
StepResponse = _types.StepResponse
WSResetMessage = _types.WSResetMessage
WSStateMessage = _types.WSStateMessage
WSStepMessage = _types.WSStepMessage
