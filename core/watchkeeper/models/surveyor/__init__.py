"""`offline/surveyor`: a deterministic stand-in for a language model, for trying the system with no key and no
network.

It is not an LLM, and says so. It drives the real tool protocol over a real folder: as planner it makes a plan
from what the folder holds, as explorer it counts, as writer it reports. Promises: each reply is a function of
the request alone and carries its whole cursor, so that compaction, kills and resumes cannot change what is
surveyed.
"""

from watchkeeper.models.surveyor.model import REF, SurveyorModel

__all__ = ["REF", "SurveyorModel"]
