"""Tests of the names of earlier versions."""

import importlib
import sys

import pytest

from nsde_policy.deprecated import MOVED, RENAMED
from nsde_policy.errors import NsdePolicyError

NAMES = [(module, old, new) for module, names in RENAMED.items() for old, new in names.items()]


@pytest.mark.parametrize(("module", "old", "new"), NAMES, ids=[old for _, old, _ in NAMES])
def test_a_renamed_name_still_works_and_warns(module, old, new):
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {module}.{new}"):
        assert getattr(found, old) is getattr(found, new)
    assert old not in vars(found)


def test_an_unknown_name_is_not_found():
    errors = importlib.import_module("nsde_policy.errors")
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchError'"):
        errors.NoSuchError  # noqa: B018


def test_there_are_few_classes_of_errors():
    errors = importlib.import_module("nsde_policy.errors")
    found = [each for each in vars(errors).values() if isinstance(each, type)]
    classes = [each for each in found if each.__module__ == errors.__name__]
    assert len(classes) <= 12
    assert all(issubclass(each, NsdePolicyError) for each in classes)


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_moved_module_can_be_imported_by_its_earlier_name(old, new, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        module = importlib.import_module(old)
    found = importlib.import_module(new)
    assert all(
        getattr(module, name) is vars(found)[name] for name in vars(found) if not name.startswith("__")
    )
    assert found.__spec__ is not None
    assert found.__spec__.name == new
