"""Tools whose whole effect is in the session's database: plan, memory and artifact tools.

Each effect happens exactly once.
"""

from __future__ import annotations
