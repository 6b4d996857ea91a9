"""The blocks of code of a page of documentation."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w./]+\.py)\n")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Args:    line: where its code begins, from 1
    """

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file that the block is, if its first line is a comment with the name."""
        named = _FILE.match(self.text)
        return named[1] if named and self.language == "python" else None

    def commands(self) -> list[str]:
        """The lines of a shell, continued ones as one, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#")]


def blocks(text: str) -> list[Block]:
    return [Block(m[1], m[2], text[: m.start(2)].count("\n") + 1) for m in _BLOCK.finditer(text)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))
