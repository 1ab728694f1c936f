"""From the pydantic models to a structural OpenAPI v3 schema, as Kubernetes wants it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlhf_api.base import CRD_MARK, PRESET_MARK
from rlhf_api.fields import by_alias, model_in

_KEPT = ("type", "enum", "format", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "maxProperties")


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """Schema of ``model`` with every reference written out.

    Defaults are those of the schema: none for a field that a preset sets, none for null. An object whose fields all
    have defaults gets ``{}``, or the API server would not fill them in. A field that is null for another reason than
    "absent" is nullable; for the others the API server prunes a null, which means the same.
    """
    schema = model.model_json_schema(by_alias=True)
    definitions: dict[str, Any] = schema.get("$defs", {})
    models: dict[str, type[BaseModel]] = {}
    _collect(model, models)
    return _Converter(definitions, models).object(model, schema)


def _collect(model: type[BaseModel], found: dict[str, type[BaseModel]]) -> None:
    found[model.__name__] = model
    for child in _children(model):
        if child.__name__ not in found:
            _collect(child, found)


def _children(model: type[BaseModel]) -> list[type[BaseModel]]:
    children = (model_in(info.annotation) for info in model.model_fields.values())
    return [child for child in children if child is not None]


class _Converter:
    def __init__(self, definitions: dict[str, Any], models: dict[str, type[BaseModel]]) -> None:
        self.definitions, self.models = definitions, models

    def object(self, model: type[BaseModel], schema: dict[str, Any]) -> dict[str, Any]:
        properties = {}
        for alias, info in by_alias(model).items():
            properties[alias] = self._field(schema["properties"][alias], info)
        result: dict[str, Any] = {"type": "object", "properties": properties}
        if schema.get("required"):
            result["required"] = schema["required"]
        return result

    def _field(self, schema: dict[str, Any], info: FieldInfo) -> dict[str, Any]:
        default = info.get_default(call_default_factory=True, validated_data={}) if not info.is_required() else None
        result: dict[str, Any] = {}
        if info.description:
            result["description"] = " ".join(info.description.split())
        result |= self.node(schema)
        if _is_nullable(schema) and default is not None:
            result["nullable"] = True
        if isinstance(default, BaseModel):
            result["default"] = {}
        elif default not in (None, "", [], {}) and PRESET_MARK not in schema:
            result["default"] = list(default) if isinstance(default, tuple) else default
        return result

    def node(self, schema: dict[str, Any]) -> dict[str, Any]:
        if CRD_MARK in schema:
            return dict(schema[CRD_MARK])
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[-1]
            return self.object(self.models[name], self.definitions[name])
        if "anyOf" in schema:
            choices = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
            # A union of scalars has no structural form; its values are checked by the rules.
            return self.node(choices[0]) if len(choices) == 1 else {"x-kubernetes-preserve-unknown-fields": True}
        result: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
        if "const" in schema:
            result["enum"] = [schema["const"]]
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if exclusive in schema:
                result |= {bound: schema[exclusive], exclusive: True}
        least = schema.get("minimum")
        if least is not None and least != int(least):
            # kube-openapi (v1.36) cuts the bound to an integer when the value is one, so 0 would pass a minimum of 0.01.
            result["x-kubernetes-validations"] = [{"rule": f"self >= {least}", "message": f"at least {least}"}]
        if "prefixItems" in schema:
            result["items"] = self.node(schema["prefixItems"][0])
        elif "items" in schema:
            result["items"] = self.node(schema["items"])
        # The form of a key cannot be said in a structural schema; the operator checks it.
        values = next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))
        if isinstance(values, dict):
            result["additionalProperties"] = self.node(values)
        return result


def _is_nullable(schema: dict[str, Any]) -> bool:
    return {"type": "null"} in schema.get("anyOf", [])
