"""How tyro parses flags: one that may be None shows only its other values."""

from dataclasses import replace
from types import NoneType
from typing import Any, get_args

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

FLAG_RULES = ConstructorRegistry()


@FLAG_RULES.primitive_rule
def _parse_optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse `T | None` as T, or as the word None."""
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    if len(kinds) != 1 or len(get_args(info.type)) != 2:
        return None
    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
    if not isinstance(found, PrimitiveConstructorSpec):
        return None
    return replace(
        found,
        instance_from_str=lambda words: None if words == ["None"] else found.instance_from_str(words),
        is_instance=lambda value: value is None or found.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else found.str_from_instance(value),
    )
