"""The lines of results.jsonl as runs: which of them count, and who is compared with whom.

Figures of a machine that others share mean nothing from one run to the next. So whatever is compared here comes from one run.
"""
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

OURS = ("dispatcher", "chronosd", "two dispatchers", "two chronosd", "ideal")
# What a line must have, by the key that says what it is; float stands for any number.
LINES: dict[str, dict[str, type]] = {
    "about": {"about": dict},
    "peer": {"peer": str, "version": str, "fast": str, "default": str},
    "scenario": {"scenario": str, "who": str, "config": str, "round": int, "at": float, "figures": dict},
    "promise": {"promise": str, "seen": float, "asked": str, "reached": bool},
    "note": {"note": str},
    "section": {"section": str, "title": str, "what": str, "text": str},
}
ABOUT: dict[str, type] = {"commit": str, "dirty": bool, "cpu": str, "cores": int, "memory_gib": float, "kernel": str, "postgres": str,
                          "settings": dict, "rust": str, "words": str, "load": float}


class Malformed(Exception):
    """Says which line of which file is wrong, and what about it."""


@dataclass(frozen=True)
class Scenario:
    """`headline` is what ratios are taken of (the sum, if several), `lower` says that less of it is better; without one, nobody is compared."""
    name: str
    title: str
    headline: tuple[str, ...] = ()
    lower: bool = False


@dataclass(frozen=True)
class Round:
    at: float
    figures: dict[str, float]
    quantiles: list[float] | None


@dataclass(frozen=True, eq=False)
class Row:
    """Every round of one subject in one configuration (and beside so many `rows`, or 0), in the order in which they ran."""
    run: "Run"
    scenario: str
    who: str
    config: str
    rows: float
    rounds: list[Round]

    @property
    def peer(self) -> str:
        """Empty for ours."""
        name = self.who.removeprefix("two ")
        return name if name in self.run.peers else ""

    def values(self, *figures: str) -> list[float]:
        return [sum(turn.figures[name] for name in figures) for turn in self.rounds if all(name in turn.figures for name in figures)]

    def median(self, *figures: str) -> float | None:
        values = self.values(*figures)
        return median(values) if figures and values else None


@dataclass(eq=False)
class Run:
    id: str
    about: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[tuple[str, str, str, float], Row] = field(default_factory=dict)
    promises: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    told: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)  # by scenario: title, what, figures as they were printed

    def beside(self, row: Row, scenario: Scenario) -> Row | None:
        """Ours, for a peer: as many processes and the same configuration where there are such; the dispatcher alone where nobody is woken."""
        names = OURS[:2] if scenario.name in ("screen", "drain", "pending") else OURS[1::-1]
        twice = [name for name in OURS[2:4] if row.who.startswith("two ")]
        found = (self.rows.get((scenario.name, name, config, row.rows)) for name in (*twice, *names) for config in (row.config, ""))
        return next((ours for ours in found if ours and ours.median(*scenario.headline) is not None), None)

    def ratio(self, row: Row, scenario: Scenario) -> float | None:
        """Above 1 where we are ahead of a peer."""
        ours = self.beside(row, scenario) if row.peer else None
        mine, theirs = ours.median(*scenario.headline) if ours else None, row.median(*scenario.headline)
        over, under = (theirs, mine) if scenario.lower else (mine, theirs)
        return over / under if over is not None and under else None


def chosen(runs: Iterable[Run], scenario: Scenario) -> Iterator[tuple[Run, list[Row]]]:
    """The runs that count, the newest first: of each of ours the newest, of each peer the newest that has ours beside it."""
    told: set[object] = set()
    for run in runs:
        rows = [row for row in run.rows.values() if row.scenario == scenario.name]
        peers = {row.peer for row in rows if row.peer and run.beside(row, scenario)} - told
        fresh = peers | ({(row.who, row.rows) for row in rows if row.who in OURS or not told} - told)
        if fresh and (scenario.headline or not told):
            told |= fresh
            best = {peer: max((-value if scenario.lower else value for row in rows if row.peer == peer
                               if (value := row.median(*scenario.headline)) is not None), default=0) for peer in peers}
            ours = sorted((row for row in rows if not row.peer), key=lambda row: (*OURS, row.who).index(row.who) if scenario.headline else 0)
            theirs = sorted((row for row in rows if row.peer in peers), key=lambda row: (-best[row.peer], row.who, row.config == "default"))
            yield run, ours + theirs


def load(path: Path) -> list[Run]:
    """Every run of the file, the newest first."""
    runs: dict[str, Run] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []  # nothing measured yet
    except (OSError, UnicodeDecodeError) as error:
        raise Malformed(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                take(runs, line)
        except ValueError as error:
            raise Malformed(f"{path}:{number}: {error}") from error
    for run in runs.values():
        for row in run.rows.values():
            row.rounds.sort(key=lambda turn: turn.at)
    return sorted(runs.values(), key=lambda run: run.id, reverse=True)


def take(runs: dict[str, Run], line: str) -> None:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from error
    need(value if isinstance(value, dict) else {}, {"run": str})
    if not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value["run"]):
        raise ValueError(f"`run` is {value['run']!r}, not the instant at which it began")
    kinds = [kind for kind in LINES if kind in value]
    if len(kinds) != 1:
        raise ValueError(f"has {' and '.join(kinds) or 'none'} of {', '.join(LINES)}: it must have one")
    need(value, LINES[kinds[0]])
    if kinds == ["about"]:
        need(value["about"], ABOUT, "about.")
        runs.setdefault(value["run"], Run(value["run"])).about = value["about"]
    run = runs.get(value["run"])
    if run is None:
        raise ValueError(f"run {value['run']} has not said yet what it is `about`")
    match kinds[0]:
        case "peer":
            run.peers[value["peer"]] = value
        case "promise":
            run.promises.append(value)
        case "note":
            run.notes.append(value["note"])
        case "section":
            run.told.setdefault(value["section"], []).append((value["title"], value["what"], value["text"]))
        case "scenario":
            need(value["figures"], dict.fromkeys(value["figures"], float), "figures.")
            quantiles = value.get("quantiles")
            if quantiles is not None and not (isinstance(quantiles, list) and len(quantiles) == 101 and all(map(is_number, quantiles))):
                raise ValueError("`quantiles` are not 101 numbers")
            key = (value["scenario"], value["who"], value["config"], value["figures"].get("rows", 0) if value["scenario"] == "pending" else 0)
            run.rows.setdefault(key, Row(run, *key, [])).rounds.append(Round(value["at"], value["figures"], quantiles))


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def need(value: dict[str, Any], fields: dict[str, type], where: str = "") -> None:
    for name, kind in fields.items():
        if name not in value:
            raise ValueError(f"`{where}{name}` is missing")
        if not (is_number(value[name]) if kind is float else type(value[name]) is kind):
            raise ValueError(f"`{where}{name}` is {json.dumps(value[name])[:60]}, which is no {kind.__name__}")
