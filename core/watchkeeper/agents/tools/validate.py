"""Checking what a model passes to a tool against the tool's JSON Schema.

`jsonschema` does the work, less two things that a hostile schema of an MCP server could abuse: patterns (a
regular expression can run for hours) and references to other documents (which would be fetched).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

_LEFT_OUT = ("pattern", "patternProperties", "format", "$dynamicRef", "uniqueItems")
_MOST_KEPT = 256
_validators: OrderedDict[str, Any] = OrderedDict()


def validate_arguments(schema: Mapping[str, Any], arguments: Any) -> str | None:
    """One line saying what is wrong with a tool's input, or None.

    A schema that is itself no good finds no fault: the tool then judges for itself.
    """
    if not isinstance(arguments, dict):
        return "the input must be an object"
    try:
        faults = list(_validator(schema).iter_errors(arguments))
    except RecursionError:
        return None
    except Exception as error:
        # jsonschema raises many types for schemas that are wrong or refer elsewhere; none is the model's
        # fault.
        if type(error).__module__.split(".")[0] in ("jsonschema", "referencing", "builtins"):
            return None
        raise
    if not faults:
        return None
    from jsonschema.exceptions import best_match  # type: ignore[import-untyped]

    worst = best_match(faults)
    if worst is None:
        return None
    place = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in worst.absolute_path
    ).lstrip(".")
    return (f"`{place}`: " if place else "") + _clear(str(worst.message))


def _clear(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 300 else f"{line[:150]} … {line[-140:]}"


def _validator(schema: Mapping[str, Any]) -> Any:
    key = json.dumps(schema, sort_keys=True, default=str)
    if key in _validators:
        _validators.move_to_end(key)
        return _validators[key]
    from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]
    from referencing import Registry

    rules = {name: rule for name, rule in Draft202012Validator.VALIDATORS.items() if name not in _LEFT_OUT}
    checker = validators.create(
        Draft202012Validator.META_SCHEMA, rules, type_checker=Draft202012Validator.TYPE_CHECKER
    )
    made = checker(dict(schema), registry=Registry())
    _validators[key] = made
    if len(_validators) > _MOST_KEPT:
        _validators.popitem(last=False)
    return made
