"""Sizes in bytes, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verydeep.errors import UsageError
from verydeep.size import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2 * 10**9), ("512MB", 512 * 10**6), ("1GiB", 2**30), ("1.5 gib", 3 * 2**29), ("3kb", 3000), (" 7 b", 7),
     ("12345678901234567", 12345678901234567), (99, 99), ("0.5kB", 500), ("1TB", 10**12)],
)  # fmt: skip
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "2XB", "-1GB", "0", "0.0001kB", "1e9", "2 G B", "nan", "inf", True, -5, 0])
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(UsageError, match=r"^memory_budget .*: must be a number of bytes above 0, such as 2GB, 512MB"):
        parse_size(text, name="memory_budget")


@given(st.integers(1, 10**15))
def test_what_is_written_is_never_less_and_at_most_a_hundredth_more(size):
    written = parse_size(format_size(size))
    assert size <= written <= size * 1.0101 + 10
