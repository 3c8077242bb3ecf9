"""Typed parts to an OpenAPI v3 structural schema, as a CustomResourceDefinition wants it."""

from enum import Enum

from msgspec import inspect

from tidegate_operator.cluster import Manifest
from tidegate_operator.part import Part


def schema_of(part: type[Part]) -> Manifest:
    """The schema of one part and of everything below it: types, limits, descriptions, CEL rules.

    No defaults are written; a field without one becomes required.
    """
    info = inspect.type_info(part)
    assert isinstance(info, inspect.StructType)
    return _struct(info)


def _struct(info: inspect.StructType) -> Manifest:
    schema: Manifest = {"type": "object"}
    if info.cls.__doc__:
        schema["description"] = info.cls.__doc__
    if required := [field.encode_name for field in info.fields if field.required]:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _any_type(field.type) for field in info.fields}
    assert issubclass(info.cls, Part)
    if info.cls.RULES:
        schema["x-kubernetes-validations"] = [{"rule": rule.rule, "message": rule.message} for rule in info.cls.RULES]
    return schema


def _any_type(kind: inspect.Type) -> Manifest:
    match kind:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return _any_type(inner) | (extra or {})
        case inspect.UnionType(types=types):
            return _union([_any_type(kind) for kind in types if not isinstance(kind, inspect.NoneType)])
        case inspect.StructType():
            return _struct(kind)
        case inspect.EnumType(cls=cls):
            return _enum(cls)
        case inspect.StrType():
            limits = {"minLength": kind.min_length, "maxLength": kind.max_length, "pattern": kind.pattern}
            return {"type": "string"} | _given(limits)
        case inspect.IntType():
            return {"type": "integer"} | _given({"minimum": kind.ge, "maximum": kind.le})
        case inspect.FloatType():
            return {"type": "number"} | _given({"minimum": kind.ge, "maximum": kind.le})
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.DateTimeType():
            return {"type": "string", "format": "date-time"}
        case inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": _any_type(item)} | _given({"maxItems": kind.max_length})
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _any_type(value)}
        case _:
            raise TypeError(f"no schema for {kind}: teach schema.py about it")


def _enum(cls: type[Enum]) -> Manifest:
    return {"type": "string", "enum": [member.value for member in cls]}


def _given(limits: Manifest) -> Manifest:
    return {name: limit for name, limit in limits.items() if limit is not None}


def _union(schemas: list[Manifest]) -> Manifest:
    """A structural schema has one type per field; a number or a string is the one exception Kubernetes makes."""
    if len(schemas) == 1:
        return schemas[0]
    if [schema["type"] for schema in schemas] == ["integer", "string"]:
        text = {name: limit for name, limit in schemas[1].items() if name != "type"}
        return {"x-kubernetes-int-or-string": True} | text
    raise TypeError(f"a structural schema has one type per field, not {schemas}")
