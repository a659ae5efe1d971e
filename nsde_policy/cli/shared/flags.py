"""Rules for tyro: help pages and errors show an optional flag without None."""

from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

FLAG_RULES = ConstructorRegistry()


@FLAG_RULES.primitive_rule
def _parse_optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Parse `T | None` like T, or as the word None; leave types with choices or several values to tyro."""
    parts = get_args(info.type) if get_origin(info.type) in (Union, UnionType) else ()
    kinds = [kind for kind in parts if kind is not NoneType]
    if len(kinds) != 1 or NoneType not in parts:
        return None
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
    if not isinstance(spec, PrimitiveConstructorSpec) or spec.choices or spec.nargs not in (1, "*"):
        return None
    return replace(
        spec,
        instance_from_str=lambda words: None if words == ["None"] else spec.instance_from_str(words),
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
    )
