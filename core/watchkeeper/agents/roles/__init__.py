"""Roles: what an agent is told to be, and which tools it may call. Markdown files with YAML front matter.

Built-in roles come first, the user's files override them, and the workspace's override both but can only
narrow: a cloned repository grants itself nothing.
"""

from watchkeeper.agents.roles.instructions import agents_md
from watchkeeper.agents.roles.loading import Roles, load_roles
from watchkeeper.agents.roles.role import ALWAYS, PLAN_TOOLS, Role

__all__ = ["ALWAYS", "PLAN_TOOLS", "Role", "Roles", "agents_md", "load_roles"]
