"""The code blocks of a page, in order, and what each is to a test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>\w+)(?: title="(?P<title>[^"]*)")?\n'
    r"(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_FILE_NAME = re.compile(r"[\w./-]+\.\w+")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: What stands after the fence.
        title: What stands above the block on the page.
        body: Its lines.
        line: Where it starts in its page.
    """

    language: str
    title: str
    body: str
    line: int

    @property
    def needs(self) -> str:
        """What a reader must have to run it, where that is more than the package; else ""."""
        return self.title.removeprefix("Needs ") if self.title.startswith("Needs ") else ""

    @property
    def exit_code(self) -> int:
        """How its last command ends."""
        found = re.fullmatch(r"Exit code (\d+)", self.title)
        return int(found[1]) if found else 0

    @property
    def is_file(self) -> bool:
        """Whether it is a file of the page's folder, named by its title."""
        return bool(_FILE_NAME.fullmatch(self.title))


def blocks_of(page: Path) -> list[Block]:
    """Read the blocks of a page.

    Raises:
        ValueError: A fence was not understood.
    """
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _FENCE.finditer(text):
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(match["language"], match["title"] or "", body, line))
    if text.count("```") != 2 * len(blocks):
        raise ValueError(f"{page}: {text.count('```')} fences, {len(blocks)} blocks understood.")
    return blocks


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Split a console block into its commands, each with the output shown below it."""
    commands: list[tuple[str, str]] = []
    for line in block.body.splitlines(keepends=True):
        if line.startswith("$ "):
            commands.append((line[2:].rstrip("\n"), ""))
        elif commands and commands[-1][0].endswith("\\"):
            command = commands[-1][0].rstrip("\\") + line.strip()
            commands[-1] = (command, "")
        elif commands:
            command, shown = commands[-1]
            commands[-1] = (command, shown + line)
        else:
            raise ValueError(f"Line {block.line}: a console block begins with a line '$ COMMAND'.")
    return commands


_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w)")
_MEASURED = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?= ?(?:s|ms|KiB|MiB|KB|MB|docs/s)\b)")


def agrees(shown: str, printed: str) -> bool:
    """Whether an output is the one shown on a page.

    ``...`` stands for anything within a line, and alone on a line for any number of lines. Times
    and sizes may have any value. Numbers with decimals may differ by one unit of the last decimal
    shown, or by 0.01: a CPU without bfloat16 computes in float32.
    """
    shown, printed = (_MEASURED.sub("0", _tidy(text)) for text in (shown, printed))
    pattern, numbers = "", []
    for part in re.split(r"(^\.\.\.\n|\.\.\.)", shown, flags=re.MULTILINE):
        if part.startswith("..."):
            pattern += r"[\s\S]*?" if part.endswith("\n") else r".*?"
            continue
        end = 0
        for number in _NUMBER.finditer(part):
            pattern += re.escape(part[end : number.start()]) + rf"({_NUMBER.pattern})"
            numbers.append(number[0])
            end = number.end()
        pattern += re.escape(part[end:])
    found = re.fullmatch(pattern, printed)
    return found is not None and all(map(_near, numbers, found.groups()))


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _near(shown: str, printed: str) -> bool:
    if "." not in shown and "e" not in shown:
        return shown == printed
    decimals = len(shown.partition(".")[2].partition("e")[0])
    wanted, got = (float(text.replace(",", "")) for text in (shown, printed))
    return abs(wanted - got) <= 1.001 * max(10.0**-decimals, 0.01)
