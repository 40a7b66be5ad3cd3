"""One agent's loop, roles, tools, the planner's plan, handoffs."""
