#!/usr/bin/env python3
"""testbed/links.py    checks the links of all Markdown files of the checkout: the file is there, and so is the heading (#anchor)

Links to elsewhere (https:) are not followed: tests need no internet. Code blocks are not looked at.
"""
import pathlib
import re
import subprocess
import sys
import urllib.parse

root = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|^\s*\[[^\]]+\]:\s*(\S+)")


def prose(path):
    """The lines that are not in code blocks, numbered, without code in them."""
    fence = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or mark[1].startswith(fence)):
            fence = mark[1] if fence is None else None
        elif fence is None:
            yield number, line


def anchors(path):
    """As GitHub makes them: lower case, punctuation gone, blanks to hyphens; the second of a name has -1 behind it."""
    seen, found = {}, set()
    for _, line in prose(path):
        found |= set(re.findall(r'<a (?:id|name)="([^"]+)"', line))
        if heading := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(slug if slug not in seen else f"{slug}-{seen[slug]}")
            seen[slug] = seen.get(slug, 0) + 1
    return found


listed = subprocess.run(
    ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"], cwd=root, check=True, capture_output=True, text=True
)
wrong = links = 0
for name in filter(None, listed.stdout.split("\0")):
    page = root / name
    if not page.exists():
        continue  # deleted and not committed yet
    for number, line in prose(page):
        for inline, reference in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            link = inline or reference
            if re.match(r"[a-z][a-z+.-]*:", link):
                continue
            links += 1
            where, _, anchor = urllib.parse.unquote(link).partition("#")
            target = (page.parent / where).resolve() if where else page
            if not target.exists():
                told = f"there is no {where}"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                told = f"{where or name} has no heading #{anchor}"
            else:
                continue
            print(f"{name}:{number}: {link}: {told}", file=sys.stderr)
            wrong += 1
print(f"links: {links} links of Markdown files, {wrong} of them wrong")
sys.exit(wrong != 0)
