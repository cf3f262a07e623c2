#!/usr/bin/env python3
"""Prints docs/reference/chart.md: every value of charts/chronos/values.yaml with its default and the comment above it.

Reads values.yaml line by line, in the shape that it has: two spaces a level, a comment above each key, no tabs, no anchors. A key without
a comment stops it: every value is documented.
"""
import pathlib
import re
import sys

VALUES = pathlib.Path(__file__).parent.parent / "charts/chronos/values.yaml"
KEY = re.compile(r"^( *)([A-Za-z_][\w.-]*):(?: (.*))?$")

HEAD = """# Values of the chart

GENERATED from `charts/chronos/values.yaml` by `make generate`. Two have no default that works: `router.wakeUrl`, and `secrets.existingSecret` (or
`postgres.trial.enabled`). A value that is not in this list is refused by its name.

| value | default | meaning |
| --- | --- | --- |
"""


def indent(line):
    return len(line) - len(line.lstrip(" "))


def block(lines, start, depth):
    """What belongs to the key above line `start`: everything that is deeper."""
    end = start
    while end < len(lines) and lines[end].strip() and indent(lines[end]) > depth:
        end += 1
    return lines[start:end]


def flow(lines):
    """A small block of YAML on one line: maps in braces, lists in brackets."""
    parts, first = [], lines[0].lstrip()
    opening, closing = "[]" if first.startswith("- ") else "{}"
    depth, at = indent(lines[0]), 0
    while at < len(lines):
        below = block(lines, at + 1, depth)
        text = lines[at].strip().removeprefix("- ")
        parts.append(f"{text} {flow(below)}" if below else text)
        at += 1 + len(below)
    return opening + ", ".join(parts) + closing


def rows(lines):
    path, comment, at = [], [], 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip():
            comment = []
        elif line.lstrip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        else:
            found = KEY.match(line)
            if not found:
                sys.exit(f"{VALUES}:{at}: cannot read {line!r}")
            spaces, key, value = found.groups()
            depth = len(spaces) // 2
            path = path[:depth] + [key]
            below = block(lines, at, len(spaces))
            documented = below and below[0].lstrip().startswith("#")
            name, said = ".".join(path), " ".join(comment)
            if not comment and (value is not None or not any(l.lstrip().startswith("#") for l in below)):
                sys.exit(f"{VALUES}:{at}: {name} has no comment above it")
            if value is not None:
                yield name, value, said
            elif documented:
                if said:
                    yield name, None, said
            elif comment:
                yield name, flow(below), said
                at += len(below)
            comment = []


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


table = "".join(
    f"| `{name}` | {'' if default is None else f'`{cell(default)}`'} | {cell(said)} |\n" for name, default, said in rows(VALUES.read_text().splitlines())
)
print(HEAD + table, end="")
