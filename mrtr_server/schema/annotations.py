"""The parts of an annotation: aliases, unions, and what `Annotated` adds."""

import types
from collections.abc import Iterator
from inspect import isclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel


def resolved(annotation: Any) -> Any:
    """Return what a `type` alias stands for, whether the alias is Python's own or of typing_extensions."""
    while hasattr(annotation, "__value__"):
        annotation = annotation.__value__
    return annotation


def union_members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def metadata_within(annotation: Any, seen: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield what `Annotated` adds anywhere in an annotation: in the items of a list, in the fields of a model."""
    if any(annotation is each for each in seen):  # it refers to itself
        return
    seen = (*seen, annotation)
    annotation = resolved(annotation)
    metadata = getattr(annotation, "__metadata__", ())
    yield from metadata
    for each in get_args(annotation):
        if not any(each is mark for mark in metadata):
            yield from metadata_within(each, seen)
    if isclass(annotation) and issubclass(annotation, BaseModel):
        for model_field in annotation.model_fields.values():
            yield from model_field.metadata
            yield from metadata_within(model_field.annotation, (*seen, annotation))
