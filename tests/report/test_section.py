"""Sections: data that comes back from JSON, and names what is wrong with it."""

import json

import pytest

from tests.report.examples import sections
from verydeep.errors import UsageError
from verydeep.files import json_text
from verydeep.report.section import Section


def test_comes_back_from_json():
    for section in sections():
        assert Section.from_dict(json.loads(json_text(section.to_dict()))).to_dict() == section.to_dict()


def test_name_and_title_are_enough():
    assert Section.from_dict({"name": "a", "title": "A", "other": 1}) == Section("a", "A", cells=[], charts=[])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"title": "A"}, "name must be a str"),
        ({"name": "a"}, "title must be a str"),
        ({"name": "a", "title": "A", "cells": {}}, "cells must be a list"),
        ({"name": "a", "title": "A", "cells": [1]}, "each cell must have an id"),
        (
            {"name": "a", "title": "A", "cells": [{"id": "b", "verdict": "maybe"}]},
            "must be one of holds, fails, not run",
        ),
        ({"name": "a", "title": "A", "charts": ["b"]}, "each chart must be a mapping"),
        ({"name": "a", "title": "A", "charts": [{"name": "b"}]}, "chart 'b': title must be a str"),
    ],
)
def test_what_is_wrong_is_named(values, problem):
    with pytest.raises(UsageError, match=problem):
        Section.from_dict(values)


def test_a_table_must_be_whole():
    with pytest.raises(UsageError, match="each table must have title, columns and rows"):
        Section.from_dict({"name": "a", "title": "A", "tables": [{"title": "t"}]})
