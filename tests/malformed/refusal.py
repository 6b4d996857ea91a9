"""The harness of the sweep over malformed inputs: what the command line owes whoever gives it one.

A refusal exits with 2 (bad usage) or 1 (a stated failure), says one line on stderr, shows no traceback, comes within
seconds, and leaves every file as it was. Modules of this folder hold the inputs; each lists its own in `INPUTS`.
"""

import contextlib
import io
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from verydeep import cli

SECONDS = 60  # a refusal takes milliseconds; a machine may be busy


class TooSlow(BaseException):
    """Not an Exception: the command line would turn it into a line."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlow(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Every path below a folder: a file with its bytes."""
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def outcome(argv: Sequence[str]) -> tuple[int, str]:
    """Exit code and stderr of `verydeep ARGV`, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with time_limit(SECONDS), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(argv)
    return code, err.getvalue()


def stated(code: int, err: str, argv: Sequence[str]) -> str:
    """The one line of a refusal."""
    said = f"{list(argv)} -> {code}: {err[:2000]}"
    assert code in (1, 2), said
    assert err.count("\n") == 1 and err.endswith("\n"), said
    assert err.startswith("verydeep: error: "), said
    assert "internal error" not in err and "Traceback" not in err, said
    return err.removeprefix("verydeep: error: ").rstrip("\n")


def refused(argv: Sequence[str], *names: str, code: int | None = None) -> str:
    """The line with which `verydeep ARGV` is refused in the working directory, where it changes nothing.

    Args:    names: what the line must contain: the argument, the value, the file
             code: the exit code; default: 1 or 2
    """
    before = contents(Path())
    given, err = outcome(argv)
    line = stated(given, err, argv)
    assert contents(Path()) == before, f"{list(argv)} changed {set(contents(Path()).items()) ^ set(before.items())}"
    assert code is None or given == code, f"{list(argv)} -> {given}: {line}"
    for name in names:
        assert name in line, f"{name!r} is not in {line!r}"
    return line


def refused_or_taken(argv: Sequence[str]) -> None:
    """As `refused`, of an input that may by chance be a legal one."""
    before = contents(Path())
    code, err = outcome(argv)
    if code != 0:
        stated(code, err, argv)
        assert contents(Path()) == before, f"{list(argv)} changed a file"
