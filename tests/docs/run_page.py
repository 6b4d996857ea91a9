"""Runs a page's blocks in order, in one process and the current directory: `python run_page.py PAGE [LINE ...]`.

Files are written, shell lines run, Python goes into one namespace, and consoles must show what is printed. The LINEs,
shell lines, are left out.
"""

import doctest
import shlex
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path.cwd())]

from tests.docs.page import Block, blocks  # noqa: E402
from verydeep import cli  # noqa: E402


def run(page: Path, left_out: list[str]) -> None:
    names = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        print(f"{page.name}:{block.line}", flush=True)
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            for line in block.commands():
                if line not in left_out:
                    run_line(line)
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)
        elif block.language == "pycon":
            check_console(block, names)


def run_line(line: str) -> None:
    if line.startswith("verydeep "):
        code = cli.main(shlex.split(line)[1:])
    else:
        code = subprocess.run(["bash", "-c", line]).returncode
    if code != 0:
        raise SystemExit(f"exit code {code}: {line}")


def check_console(block: Block, names: dict[str, object]) -> None:
    examples = doctest.DocTestParser().get_doctest(block.text, names, "console", None, block.line)
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, clear_globs=False).failed
    names |= examples.globs  # get_doctest copies them
    if failed:
        raise SystemExit(f"{failed} of the examples show something else")


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve(), sys.argv[2:])
