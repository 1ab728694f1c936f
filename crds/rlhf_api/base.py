"""The base of every model in the contract."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

T = TypeVar("T")

Pair = Annotated[tuple[float, float], Field(strict=False)]
"""Two numbers, written as a YAML list."""

PRESET_MARK = "x-rlhf-set-by-preset"
CRD_MARK = "x-rlhf-crd"
"""JSON schema key whose value replaces a field's schema in the CRD, where the type cannot be a structural schema."""


class Strict(BaseModel):
    """Refuses unknown fields, reads camelCase, never coerces a string into a number.

    Attributes are snake_case; YAML, JSON and every message use the camelCase alias. The docstring under a
    field is its description in the CRD and in the reference.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


def preset_field(default: T, **bounds: Any) -> T:
    """A field whose value comes from the ``rl.algorithm`` preset unless the manifest names it.

    The CRD carries no default for it: an API server that filled one in would silently override the preset.
    ``default`` is the value of the ``grpo`` preset.
    """
    extra: dict[str, JsonValue] = {PRESET_MARK: True}
    return Field(default, json_schema_extra=extra, **bounds)  # type: ignore[no-any-return]
