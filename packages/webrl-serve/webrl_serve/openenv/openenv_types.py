"""OpenEnv's message types, field by field those of `openenv.core.env_server.types`.

They are declared here because the packages that own that module (`openenv`, formerly `openenv-core`) bring Gradio and
an MCP server: a hundred packages, and ten seconds of CPU at import, for classes that need pydantic alone. A test
compares their schemas with those of the installed package.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class HealthStatus(StrEnum):
    """Server health status values."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEGRADED = "degraded"


class Action(BaseModel):
    """Base class for all environment actions."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, arbitrary_types_allowed=True)

    metadata: dict[str, Any] = Field(default_factory=dict, description="Additional metadata for the action")


class Observation(BaseModel):
    """Base class for all environment observations."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, arbitrary_types_allowed=True)

    done: bool = Field(default=False, description="Whether the episode has terminated")
    reward: bool | int | float | None = Field(default=None, description="Reward signal from the last action")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Additional metadata for the observation")


class State(BaseModel):
    """Base class for environment state."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, arbitrary_types_allowed=True)

    episode_id: str | None = Field(default=None, description="Unique identifier for the current episode")
    step_count: int = Field(default=0, ge=0, description="Number of steps taken in the current episode")


class ResetResponse(BaseModel):
    """Response model for environment reset."""

    model_config = ConfigDict(extra="forbid")

    observation: dict[str, Any] = Field(description="Initial observation from the environment")
    reward: float | None = Field(default=None, description="Initial reward (typically None at reset)")
    done: bool = Field(default=False, description="Whether episode is already done (typically False)")


class StepResponse(BaseModel):
    """Response model for environment step."""

    model_config = ConfigDict(extra="forbid")

    observation: dict[str, Any] = Field(description="Observation resulting from the action")
    reward: float | None = Field(default=None, description="Reward signal from the action")
    done: bool = Field(default=False, description="Whether the episode has terminated")


class BaseMessage(BaseModel):
    """Base class for WebSocket messages with shared configuration."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class EnvironmentMetadata(BaseMessage):
    """Metadata about an environment for documentation and UI purposes."""

    name: str = Field(description="Name of the environment")
    description: str = Field(description="Description of what the environment does")
    readme_content: str | None = Field(default=None, description="Content of the README file for the environment")
    version: str | None = Field(default=None, description="Version of the environment")
    author: str | None = Field(default=None, description="Author of the environment")
    documentation_url: str | None = Field(default=None, description="URL to the environment's documentation")


class SchemaResponse(BaseMessage):
    """Response model for the combined schema endpoint."""

    action: dict[str, Any] = Field(description="JSON schema for actions accepted by this environment")
    observation: dict[str, Any] = Field(description="JSON schema for observations returned by this environment")
    state: dict[str, Any] = Field(description="JSON schema for environment state objects")


class HealthResponse(BaseMessage):
    """Response model for health check endpoint."""

    status: HealthStatus = Field(default=HealthStatus.HEALTHY, description="Health status of the environment server")


class WSResetMessage(BaseMessage):
    """WebSocket message to reset the environment."""

    type: Literal["reset"] = Field(default="reset", description="Message type")
    data: dict[str, Any] = Field(default_factory=dict, description="Optional reset parameters (seed, episode_id, etc.)")


class WSStepMessage(BaseMessage):
    """WebSocket message to execute a step."""

    type: Literal["step"] = Field(default="step", description="Message type")
    data: dict[str, Any] = Field(description="Action data conforming to environment's action schema")


class WSStateMessage(BaseMessage):
    """WebSocket message to request current state."""

    type: Literal["state"] = Field(default="state", description="Message type")
