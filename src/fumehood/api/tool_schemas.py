"""JSON Schemas of tools: made from a function's signature, and used to check the arguments of a guest's calls.

The calling code is hostile, so arguments are checked strictly and nothing is converted. The slim install has no library
for JSON Schema, and needs none: the schemas made here use a dozen keywords, which the check below knows. A schema from
the caller with other keywords (`$ref`, `allOf`, `pattern`, ...) is checked by `jsonschema` if that is installed, and
refused at once if it is not: an unchecked keyword would give a false sense of safety. A `pattern` is matched against a
guest's text: it must not be one whose matching takes exponential time.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fumehood.errors import InvalidArgumentError
from fumehood.text import visible_line
from fumehood.values.charts import JsonValue

# Returns the fault in the arguments of a call, or None.
Check = Callable[[Mapping[str, JsonValue]], str | None]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list, tuple),
    "object": (dict,),
}
_PLAIN_HINTS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    None: "null",
    list: "array",
    dict: "object",
}
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping)
# Bounds: the types that each applies to, and whether it is a minimum.
_BOUNDS: Mapping[str, tuple[tuple[type, ...], bool]] = {
    "minimum": ((int, float), True),
    "maximum": ((int, float), False),
    "minLength": ((str,), True),
    "maxLength": ((str,), False),
    "minItems": ((list, tuple), True),
    "maxItems": ((list, tuple), False),
}
# Keywords that check nothing.
_NOTES = frozenset(
    {
        "$schema",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
    }
)
_KNOWN = (
    _NOTES
    | _BOUNDS.keys()
    | {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
    }
)
_MAX_MESSAGE_CHARACTERS = 300


def schema_of(function: Callable[..., object], where: str) -> dict[str, Any]:
    """Returns the schema of a function's arguments.

    Args:
        function: The function.
        where: Its name in errors.

    Raises:
        InvalidArgumentError: The function has an argument that cannot be given by name, or whose type JSON does not
            have.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except (TypeError, ValueError, NameError) as error:
        raise _refused(where, f"the signature cannot be read: {error}") from None

    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    required = []

    for parameter in parameters:
        hint = Any if parameter.annotation is parameter.empty else parameter.annotation

        if parameter.kind is parameter.VAR_KEYWORD:
            schema["additionalProperties"] = _schema_of_hint(hint, f"{where}(**{parameter.name})") or True
            continue

        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise _refused(where, f"{parameter.name!r} cannot be given by name")

        described = _schema_of_hint(hint, f"{where}({parameter.name})")

        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is None or type(parameter.default) in (str, int, bool):
            described = {**described, "default": parameter.default}

        schema["properties"][parameter.name] = described

    return {**schema, "required": required}


def check_of(schema: Mapping[str, JsonValue], where: str) -> Check:
    """Returns the check of arguments against a schema.

    Raises:
        InvalidArgumentError: The value is not a schema, or has keywords that cannot be checked here.
    """
    strange = _strange_keywords(schema, where)

    if not strange:
        return lambda arguments: _fault(schema, dict(arguments), "")

    return _library_check(schema, where, strange)


# -- from hints


def _schema_of_hint(hint: Any, where: str) -> dict[str, Any]:
    if hint is Any or hint is object:
        return {}

    if isinstance(hint, str):
        raise _refused(where, f"the hint {hint!r} cannot be resolved")

    if isinstance(hint, collections.abc.Hashable) and hint in _PLAIN_HINTS:
        return {"type": _PLAIN_HINTS[hint]}

    if isinstance(hint, type) and is_typeddict(hint):
        return _schema_of_typed_dict(hint, where)

    return _schema_of_generic(hint, where)


def _schema_of_generic(hint: Any, where: str) -> dict[str, Any]:
    origin, parts = get_origin(hint), get_args(hint)

    if origin is Annotated:
        words = [part for part in parts[1:] if isinstance(part, str)]
        described = _schema_of_hint(parts[0], where)
        return {**described, "description": words[0]} if words else described

    if origin in (Required, NotRequired):
        return _schema_of_hint(parts[0], where)

    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema_of_hint(part, where) for part in parts]}

    if origin is Literal and all(part is None or isinstance(part, str | int) for part in parts):
        return {"enum": list(parts)}

    if hint in _LISTS or origin in _LISTS:
        return {"type": "array", **({"items": _schema_of_hint(parts[0], where)} if parts else {})}

    if hint in _MAPPINGS or (origin in _MAPPINGS and parts[0] is str):
        values = _schema_of_hint(parts[1], where) if parts else {}
        return {"type": "object", **({"additionalProperties": values} if values else {})}

    raise _refused(where, f"JSON has no {getattr(hint, '__name__', hint)}")


def _schema_of_typed_dict(hint: Any, where: str) -> dict[str, Any]:
    hints = get_type_hints(hint, include_extras=True)
    # Python does not see these marks in annotations that are kept as text.
    marks = {name: get_origin(part) for name, part in hints.items()}
    required = [
        name
        for name, mark in marks.items()
        if mark is Required or (mark is not NotRequired and name in hint.__required_keys__)
    ]
    return {
        "type": "object",
        "properties": {name: _schema_of_hint(part, f"{where}.{name}") for name, part in hints.items()},
        "required": required,
        "additionalProperties": False,
    }


def _refused(where: str, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        field=where,
        value=reason,
        allowed="str, int, float, bool, None, list, dict[str, ...], Literal, TypedDict, and unions of them; for others "
        "give HostTool(..., parameters=SCHEMA)",
    )


# -- what a schema says


def _strange_keywords(schema: object, where: str) -> set[str]:
    """Returns the keywords that the check below does not know, anywhere in a schema."""
    if isinstance(schema, bool):
        return set()

    if not isinstance(schema, Mapping) or not _is_well_formed(schema):
        raise InvalidArgumentError(field=where, value=schema, allowed="a JSON Schema")

    strange = set(schema) - _KNOWN
    inner: list[object] = []

    for keyword in ("items", "additionalProperties"):
        inner += [schema[keyword]] if keyword in schema else []

    inner += schema.get("anyOf", [])
    inner += schema.get("properties", {}).values()
    return strange.union(*(_strange_keywords(one, where) for one in inner))


def _is_well_formed(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", [])
    bounds = [schema[name] for name in _BOUNDS if name in schema]
    return (
        all(
            isinstance(kind, str) and kind in _TYPES
            for kind in (kinds if isinstance(kinds, list) else [kinds])
        )
        and isinstance(schema.get("properties", {}), Mapping)
        and isinstance(schema.get("required", []), list | tuple)
        and isinstance(schema.get("enum", []), list | tuple)
        and isinstance(schema.get("anyOf", [{}]), list | tuple)
        and all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds)
    )


def _fault(schema: Any, value: Any, where: str) -> str | None:
    """Returns the fault in a value, beginning with its place; None if there is none."""
    if schema is True:
        return None

    if schema is False:
        return f"{_named(where)} is not allowed"

    wrong = _fault_of_kind(schema, value)

    if wrong is not None:
        return f"{_named(where)} {wrong}"

    if "anyOf" in schema:
        faults = [_fault(one, value, where) for one in schema["anyOf"]]

        if all(fault is not None for fault in faults):
            return " or ".join(dict.fromkeys(str(fault) for fault in faults))[:_MAX_MESSAGE_CHARACTERS]

    if isinstance(value, dict):
        return _fault_of_object(schema, value, where)

    if isinstance(value, list | tuple) and "items" in schema:
        places = ((f"{where}[{number}]", item) for number, item in enumerate(value))
        wrongs = (_fault(schema["items"], item, place) for place, item in places)
        return next((one for one in wrongs if one is not None), None)

    return None


def _fault_of_kind(schema: Mapping[str, Any], value: Any) -> str | None:
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]

    if kinds and not any(_is_of(kind, value) for kind in kinds):
        return f"is of type {_kind_of(value)}, and must be of type {' or '.join(kinds)}"

    if "enum" in schema and not any(_same(one, value) for one in schema["enum"]):
        return f"is none of {', '.join(map(repr, schema['enum']))}"[:_MAX_MESSAGE_CHARACTERS]

    if "const" in schema and not _same(schema["const"], value):
        return f"is not {schema['const']!r}"[:_MAX_MESSAGE_CHARACTERS]

    return _fault_of_size(schema, value)


def _fault_of_size(schema: Mapping[str, Any], value: Any) -> str | None:
    size = len(value) if isinstance(value, str | list | tuple) else value

    for keyword, (measured, is_least) in _BOUNDS.items():
        if keyword not in schema or not isinstance(value, measured) or isinstance(value, bool):
            continue

        if (size < schema[keyword]) if is_least else (size > schema[keyword]):
            return f"is beyond its {keyword} of {schema[keyword]}"

    return None


def _fault_of_object(schema: Mapping[str, Any], value: dict[str, Any], where: str) -> str | None:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", True)

    for name in schema.get("required", ()):
        if name not in value:
            return f"{_named(f'{where}.{name}')} is missing"

    for name, item in value.items():
        place = f"{where}.{visible_line(name[:40])}"

        if name not in properties and others is False:
            known = ", ".join(properties) or "none"
            return f"{_named(place)} is not known; known are: {known}"[:_MAX_MESSAGE_CHARACTERS]

        fault = _fault(properties.get(name, others), item, place)

        if fault is not None:
            return fault

    return None


def _named(where: str) -> str:
    return f"the argument '{where.removeprefix('.')}'" if where else "the arguments"


def _is_of(kind: str, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _kind_of(value: Any) -> str:
    return next((kind for kind in _TYPES if _is_of(kind, value)), type(value).__name__)


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


# -- with a library


def _library_check(schema: Mapping[str, JsonValue], where: str, strange: set[str]) -> Check:
    try:
        import jsonschema
        import referencing
    except ImportError:
        raise InvalidArgumentError(
            field=where,
            value=f"a schema with {', '.join(sorted(strange))}",
            allowed="these keywords where `jsonschema` is installed: pip install 'fumehood[tools]'",
        ) from None

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise InvalidArgumentError(field=where, value=error.message, allowed="a JSON Schema") from None

    # Without a registry it would fetch the target of `$ref` from anywhere.
    validator = kind(dict(schema), registry=referencing.Registry())

    def check(arguments: Mapping[str, JsonValue]) -> str | None:
        error = jsonschema.exceptions.best_match(validator.iter_errors(dict(arguments)))

        if error is None:
            return None

        place = error.json_path.removeprefix("$")
        return visible_line(f"{_named(place)}: {error.message}", max_characters=_MAX_MESSAGE_CHARACTERS)

    return check
