"""What a role is."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

PLAN_TOOLS = frozenset(
    {"create_plan", "add_task", "revise_task", "resume_task", "rerun_task", "drop_task", "finish_session"}
)
"""Only the role `planner` may call these."""

ALWAYS = frozenset(
    {"remember", "recall", "read_back", "compact", "save_artifact", "read_artifact", "merge_artifacts"}
)  # fmt: skip
"""Every role may: without them an agent could neither keep nor hand over what it did. They touch the session
alone."""

PLANNER = "planner"


@dataclass(frozen=True, slots=True)
class Role:
    """A role, from wherever it came."""

    name: str
    description: str
    tools: tuple[str, ...] | None
    """Names or patterns (`mcp__github__*`) that it may call beside `ALWAYS`; None: all but the planner's."""
    model: str | None
    """A model reference `provider/model`; None: the session's."""
    prompt: str
    source: Path | None = None
    """The file that it was read from."""
    trusted: bool = True
    """False for a role of the workspace: somebody else may have written it."""
    place: str = "built-in"
    """Where it comes from, as people read it: `built-in`, `agents/NAME.md (yours)`, or its file in the
    workspace."""
    user_model: str | None = None
    """Of a role of the workspace: the model that the user's own role of this name runs on; None: the
    session's."""

    def may_call(self, tool: str) -> bool:
        """Whether the role lists the tool. Whether a call then runs is for `Permissions` to say."""
        if tool in PLAN_TOOLS:
            return self.name == PLANNER
        if tool in ALWAYS or self.tools is None:
            return True
        return any(fnmatch.fnmatchcase(tool, pattern) for pattern in self.tools)

    def model_for(self, session_model: str) -> str:
        """The model that it runs on. A workspace's role may choose among the session's provider only: where
        text is sent to, and on whose account, is the user's to say.
        """
        if self.model is None:
            return session_model
        if not self.trusted and self.model.partition("/")[0] != session_model.partition("/")[0]:
            return session_model
        return self.model
