"""Checks that the declarations of networks share."""

from verydeep.errors import UsageError


def whole_numbers(**values: int) -> None:
    """Refuse what is not a whole number of at least 1.

    Raises:  UsageError: naming the argument.
    """
    for name, value in values.items():
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} {value}: must be at least 1, a whole number")


def probability(**values: float) -> None:
    """Refuse what is not a probability below 1.

    Raises:  UsageError: naming the argument.
    """
    for name, value in values.items():
        if not 0 <= value < 1:
            raise UsageError(f"{name} {value}: a probability of at least 0 and below 1; nearest 0.999")
