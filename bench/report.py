#!/usr/bin/env python3
"""bench/report.py    writes docs/benchmarks.md and its plots from bench/results.jsonl, to which every benchmark adds what it saw

The same results give the same bytes. Ends with 2 where a line of the results cannot be understood, and with 1 where --check finds a file stale.
"""
import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from string import Template

sys.dont_write_bytecode = True  # nothing built lies in the checkout
import report_svg as svg  # noqa: E402
from report_data import Malformed, Row, Run, Scenario, chosen, load  # noqa: E402

HERE = Path(__file__).resolve().parent
RATE, P99 = ("per_second",), ("p99_ms",)
SCENARIOS = {scenario.name: scenario for scenario in (
    Scenario("screen", "A first look at every peer", RATE),
    Scenario("drain", "Drain", RATE),
    Scenario("http", "Drain over HTTP", RATE),
    Scenario("slow", "Drain over HTTP to a router that takes 100 ms", RATE),
    Scenario("lateness-200", "Lateness at 200 a second", P99, lower=True),
    Scenario("lateness-1000", "Lateness at 1 000 a second", P99, lower=True),
    Scenario("burst", "10 000 at one instant", P99, lower=True),
    Scenario("pending", "Cost of a job beside pending rows", RATE),
    Scenario("settled", "After a million were settled", ("claim_ms",), lower=True),
    Scenario("idle", "Idle", ("cpu_percent", "postgres_percent"), lower=True),
    Scenario("noisy", "How late quiet owners' wakes come, alone and beside a noisy one", P99, lower=True),
    Scenario("day", "A day of a million daily alarms", P99, lower=True),
    *(Scenario(name, name.capitalize()) for name in ("facade", "sessions", "controller", "layout", "pg-cron")),
)}
REQUIRED = {
    1: "Drain, attempts written: ≥ 1.5 × the best peer, ≥ 0.8 × the ideal batch loop",
    2: "Drain with a real HTTP wake: ≥ 1.3 × the best peer doing the same POST",
    3: "Lateness at 1 000/s beside 1 M pending: p99 ≤ 25 ms, and below every peer's",
    4: "10 000 at one instant: all delivered, p99 ≤ 1.2 × (10 000 ÷ own drain rate over HTTP)",
    5: "Idle with 1 M pending: ≤ 2 statements a second, < 1 % of a core",
    6: "A claim at 10 M pending ≤ 1.3 × at 100 k; after 1 M settled ≤ 1.5 ×",
    7: "Two dispatchers drain ≥ 1.2 × one; no row delivered twice",
    8: "Facade: creates ≥ 0.6 × the bare INSERT; p99 of a read under load ≤ 5 × idle",
    9: "Controller: 10 000 Alarms applied and Ready; ≤ 1 status write an object and 5 s",
}
# What the benchmarks tell of each: what they have not told was not measured. The others are worked out here.
EXPECTED = {
    1: ["drain: dispatcher / ideal batch loop"],
    4: ["burst: p99 / (10 000 / own drain rate over HTTP)"],
    5: ["idle: transactions a second", "idle: % of a core"],
    6: ["growth: a claim at 10 M pending / at 100 k", "growth: a claim behind the last after 1 M settled / before",
        "growth: a claim from the beginning after 1 M settled / before"],
    7: ["drain: two dispatchers / one, without a router", "drain: two processes / one, over HTTP",
        "drain: two processes / one, with a router that takes 100 ms"],
    8: ["creates over HTTP / bare INSERT", "p99 of a read under load / idle"],
    9: ["controller: Alarms Ready / applied", "controller: s between two statuses of an Alarm, until Ready", "controller: statuses that a restart writes",
        "controller: statuses an Alarm and 5 s, firing every second", "controller: s between two statuses of an Alarm, firing"],
}
HEADINGS = {"per_second": "a second", "statements_per_second": "transactions a second", "cpu_us": "worker CPU a job, µs", "postgres_us": "Postgres CPU a job, µs", "wal_bytes": "WAL a job, B",
            "anew_ms": "claim from the beginning, ms", "cpu_percent": "worker, % of a core", "postgres_percent": "Postgres, % of a core"}
Groups = Sequence[tuple[Run, Sequence[Row]]]


@dataclass(frozen=True)
class Verdict:
    number: int  # of REQUIRED; greater where it is none of those
    what: str
    asked: str = ""
    seen: str = ""
    reached: bool | None = None
    run: Run | None = None

    @property
    def word(self) -> str:
        return {True: "yes", False: "no", None: "not measured"}[self.reached]


class Page:
    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.used: list[Run] = []
        self.plots: dict[str, str] = {}
        self.peers = sorted({peer for run in runs for peer in run.peers})
        self.colours = {peer: svg.PALETTE[place % len(svg.PALETTE)] for place, peer in enumerate(self.peers)} | {"ideal": svg.IDEAL}

    def number(self, run: Run) -> int:
        """Runs are numbered as they are first named."""
        if run not in self.used:
            self.used.append(run)
        return self.used.index(run) + 1

    def link(self, run: Run) -> str:
        return f"[{self.number(run)}](#run-{self.number(run)})"

    def verdicts(self) -> list[Verdict]:
        """Those beside peers are worked out here; the others the benchmarks have told, and of each the newest counts."""
        found = [self.beside_peers(1, 1.5, "drain", "screen"), self.beside_peers(2, 1.3, "http"),
                 self.late(), self.beside_peers(3, 1, "lateness-1000")]
        worked_out = {verdict.what.lower() for verdict in found}
        promises: dict[str, Verdict] = {}
        for run in self.runs:
            for promise in run.promises:
                number, what = re.findall(r"^(?:(\d+)\b\.?)?\s*(.*)", promise["promise"])[0]
                asked = promise["asked"].replace(">=", "≥").replace("<=", "≤")
                verdict = Verdict(int(number or len(REQUIRED) + 1), what, asked, figure(promise["seen"]), promise["reached"], run)
                promises.setdefault(what, verdict)
        found += [verdict for what, verdict in promises.items() if what.lower() not in worked_out]
        found += [Verdict(number, what) for number, names in EXPECTED.items() for what in names if what not in promises]
        return sorted(found, key=lambda verdict: verdict.number)

    def beside_peers(self, number: int, least: float, *names: str) -> Verdict:
        """The peer that comes nearest to us or is furthest ahead decides, in whichever configuration, with one process; of the scenarios the first
        that it was in."""
        least_of: dict[str, tuple[float, Row]] = {}
        for scenario in (SCENARIOS[name] for name in names):
            pairs = [(ratio, row) for run, rows in chosen(self.runs, scenario) for row in rows if not row.who.startswith("two ")
                     if (ratio := run.ratio(row, scenario)) is not None]
            least_of = {row.peer: (ratio, row) for ratio, row in sorted(pairs, key=lambda pair: -pair[0])} | least_of
        scenario = SCENARIOS[names[0]]
        what, asked = f"{scenario.title}: ours ÷ best peer", f"≥ {least}"
        if scenario.lower:
            what, asked = f"{scenario.title}: p99 of the best peer ÷ ours", f"> {least}"
        if not least_of:
            return Verdict(number, what, asked)
        seen, row = min(least_of.values(), key=lambda pair: pair[0])
        without = ", ".join(peer for peer in self.peers if peer not in least_of)
        what += f" of {len(least_of)} ({label(row)})" + (f"; not measured: {without}" if without else "")
        return Verdict(number, what, asked, figure(seen), seen > least if scenario.lower else seen >= least, row.run)

    def late(self) -> Verdict:
        """The worst run of ours that counts decides."""
        rows = [row for _, rows in chosen(self.runs, SCENARIOS["lateness-1000"]) for row in rows if row.who == "chronosd"]
        medians = [(p99, row) for row in rows if (p99 := row.median(*P99)) is not None]
        what, (p99, row) = "Lateness at 1 000 a second: p99 in ms", max(medians, key=lambda pair: pair[0], default=(None, None))
        return Verdict(3, what, "≤ 25") if p99 is None else Verdict(3, what, "≤ 25", figure(p99), p99 <= 25, row.run)

    def requirements(self) -> str:
        rows, last = [], 0
        for found in self.verdicts():
            begins = found.number in REQUIRED and found.number != last
            last = found.number
            reached = found.word if found.reached else f"**{found.word}**"
            rows.append([str(found.number) if begins else "", REQUIRED[found.number] if begins else "", found.what, found.seen, found.asked, reached,
                         self.link(found.run) if found.run else ""])
        return table(["", "required", "measured", "seen", "asked", "reached", "run"], rows)

    def section(self, scenario: Scenario) -> str:
        groups = list(chosen(self.runs, scenario))
        if not groups:
            return self.as_printed(scenario.name)
        parts = [self.figures(scenario, groups)]
        if plot := self.plot(scenario, groups):
            self.plots[f"{scenario.name}.svg"] = plot
            parts.insert(0, f"![{scenario.title}](benchmarks/{scenario.name}.svg)")
        return "\n\n".join(parts)

    def as_printed(self, name: str) -> str:
        """What the newest run has printed of it, where nothing is compared with anybody."""
        run = next((run for run in self.runs if name in run.told), None)
        if run is None:
            return "Not measured yet."
        lines, last = [f"Run {self.link(run)}:", "", "```text"], ""
        for title, what, text in run.told[name]:
            lines += [title] if title != last else []
            lines.append(f"  {what:<58} {text}")
            last = title
        return "\n".join([*lines, "```"])

    def figures(self, scenario: Scenario, groups: Groups) -> str:
        rows = [row for _, group in groups for row in group]
        names = list(dict.fromkeys(name for row in rows for turn in row.rounds for name in turn.figures if name not in ("cut", "rows")))
        sized, compared = any(row.rows for row in rows), bool(scenario.headline) and any(row.peer for row in rows)
        lines = []
        for row in rows:
            version = row.run.peers[row.peer]["version"] if row.peer else commit(row.run)
            told = ", ".join(filter(None, [version, row.config, "stopped by the time limit" if any(row.values("cut")) else ""]))
            ratio = row.run.ratio(row, scenario)
            lines.append([self.link(row.run), row.who, told, *([figure(row.rows)] if sized else []), *(every(row.values(name)) for name in names)])
            lines[-1] += ["" if ratio is None else f"**{figure(ratio)}**"] if compared else []
        heads = ["run", "who", "version, configuration", *(["rows"] if sized else []), *map(heading, names), *(["ratio"] if compared else [])]
        return table(heads, lines)

    def plot(self, scenario: Scenario, groups: Groups) -> str:
        """One panel a run: figures of two runs do not stand side by side."""
        panels = [(f"run {self.number(run)}, {instant(run)}" if len(groups) > 1 else "", rows) for run, rows in groups]
        return self.strips(scenario, panels) if scenario.name in ("screen", "drain", "http", "slow", "noisy") else self.curves(scenario, panels)

    def strips(self, scenario: Scenario, panels: Sequence[tuple[str, Sequence[Row]]]) -> str:
        make = self.spread if scenario.name == "noisy" else self.bar
        groups = [(name, made) for name, rows in panels if (made := [strip for row in rows for strip in make(row)])]
        values = [value for _, made in groups for strip in made for value in (strip.begin, strip.end, strip.most, *strip.dots) if value > 0]
        if not values:
            return ""
        axis = svg.linear("jobs a second; each dot is a round", max(values))
        if scenario.name == "noisy":
            axis = svg.logarithmic("from the median to the 99th percentile; the thin line goes on to the latest", values, svg.milliseconds)
        return svg.strips(scenario.title, groups, axis)

    def curves(self, scenario: Scenario, panels: Sequence[tuple[str, Sequence[Row]]]) -> str:
        make = self.growth if scenario.name == "pending" else self.distribution
        groups = [(name, made) for name, rows in panels if (made := [curve for row in tuned(rows) for curve in make(row, rows)])]
        points = [point for _, made in groups for curve in made for turn in (curve.points, *curve.rounds) for point in turn]
        if not points:
            return ""
        x, y = svg.percentiles("percentile"), svg.logarithmic("late", [value for _, value in points], svg.milliseconds)
        if scenario.name == "pending":
            x = svg.logarithmic("pending rows", [rows for rows, _ in points], svg.grouped, decades=True)
            y = svg.logarithmic("times that beside the fewest", [value for _, value in points], "{:g} ×".format)
        return svg.curves(scenario.title, groups, x, y)

    def colour(self, row: Row) -> str:
        return self.colours.get(row.peer or row.who, svg.ACCENT)

    def bar(self, row: Row) -> Iterable[svg.Strip]:
        if rate := row.median(*RATE):
            yield svg.Strip(label(row), self.colour(row), row.config == "default", 0, rate, dots=row.values(*RATE), told=svg.grouped(round(rate)))

    def spread(self, row: Row) -> Iterable[svg.Strip]:
        p50, p99, most = (row.median(name) for name in ("p50_ms", "p99_ms", "max_ms"))
        if p50 and p99 and most:
            yield svg.Strip(label(row), self.colour(row), row.config == "alone", p50, p99, most)

    def distribution(self, row: Row, _: Sequence[Row]) -> Iterable[svg.Curve]:
        if turns := [list(enumerate(turn.quantiles)) for turn in row.rounds if turn.quantiles]:
            middle = [(percent, median(turn[percent][1] for turn in turns)) for percent in range(101)]
            yield svg.Curve(label(row, "fast"), self.colour(row), row.who.startswith("two "), middle, turns)

    def growth(self, row: Row, rows: Sequence[Row]) -> Iterable[svg.Curve]:
        sizes = sorted((other for other in rows if (other.who, other.config) == (row.who, row.config)), key=lambda other: other.rows)
        for name, power, more in (("per_second", -1, ""), ("claim_ms", 1, ", one claim")) if row is sizes[0] else ():
            points = [(other.rows, value**power) for other in sizes if (value := other.median(name))]
            if len(points) > 1:
                yield svg.Curve(label(row, "fast") + more, self.colour(row), power > 0, [(at, cost / points[0][1]) for at, cost in points])

    def machines(self) -> str:
        rows = []
        for run in self.used:
            about = run.about
            rows.append([f'<a id="run-{self.number(run)}"></a>{self.number(run)}', instant(run), commit(run),
                         f"{about['cpu']}, {about['cores']} cores, {figure(about['memory_gib'])} GiB", about["kernel"],
                         f"{about['postgres']}: " + ", ".join(f"{name} {value}" for name, value in about["settings"].items()),
                         about["rust"], figure(about["load"]), about["words"] or "everything"])
        return table(["run", "began (UTC)", "Chronos", "machine", "kernel", "Postgres", "Rust", "load before", "asked for"], rows)

    def configurations(self) -> str:
        runs: dict[tuple[str, ...], list[Run]] = {}
        for run in self.used:
            for peer in run.peers.values():
                runs.setdefault(tuple(peer[name] for name in ("peer", "version", "fast", "default")), []).append(run)
        rows = [[*words, ", ".join(map(self.link, runs[words]))] for words in sorted(runs)]
        return table(["peer", "version", "fast", "default", "runs"], rows) if rows else "Not measured yet."

    def render(self) -> str:
        parts = {"requirements": self.requirements()}
        parts |= {name.replace("-", "_"): self.section(scenario) for name, scenario in SCENARIOS.items()}
        others = sorted({row.scenario for run in self.runs for row in run.rows.values()} - set(SCENARIOS))
        parts["others"] = "\n\n".join(f"### {name}\n\n{self.section(Scenario(name, name))}" for name in others)
        parts["remarks"] = "\n".join(f"- Run {self.link(run)}: {note}" for run in dict.fromkeys([*self.used, *self.runs[:1]])
                                     for note in run.notes)
        parts |= {"machines": self.machines(), "peers": self.configurations()}
        page = Template((HERE / "report.md").read_text(encoding="utf-8")).substitute(parts)
        return re.sub(r"\n{3,}", "\n\n", page)


def figure(value: float) -> str:
    """As many digits as mean something; a narrow blank that does not break between thousands."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return (f"{value:,.{digits}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}").replace(",", "\u202f")


def every(values: Sequence[float]) -> str:
    rounds = list(map(figure, values))
    told = f"all {len(rounds)} rounds" if len(set(rounds)) == 1 else ", ".join(rounds)
    return f"**{figure(median(values))}**" + (f" ({told})" if len(rounds) > 1 else "") if rounds else ""


def tuned(rows: Sequence[Row]) -> list[Row]:
    """Of a peer the default configuration only if there is no other: curves would hide each other."""
    fast = {row.peer for row in rows if row.config == "fast"}
    return [row for row in rows if row.config != "default" or row.peer not in fast]


def label(row: Row, silent: str = "") -> str:
    return row.who if row.config in ("", silent) else f"{row.who}, {row.config}"


def heading(name: str) -> str:
    named = re.sub(r"_(ms|us|mb)$", lambda unit: {"_ms": ", ms", "_us": ", µs", "_mb": ", MB"}[unit[0]], name)
    return HEADINGS.get(name) or named.replace("_percent", ", %").replace("_bytes", ", B").replace("_", " ")


def commit(run: Run) -> str:
    return f"commit `{run.about['commit']}`" + (" **with uncommitted changes**" if run.about["dirty"] else "")


def instant(run: Run) -> str:
    return run.id[:19].replace("T", " ")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in line) + " |" for line in lines)


def on_terminal(verdicts: Sequence[Verdict]) -> str:
    rows = [("what is promised", "seen", "asked", "reached")]
    for found in verdicts:
        number = f"{found.number}. " if found.number in REQUIRED else ""
        rows.append((number + (found.what or REQUIRED[found.number]), found.seen, found.asked, found.word))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows).replace("\u202f", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl", help="what the benchmarks wrote (bench/results.jsonl)")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs", help="where benchmarks.md and benchmarks/*.svg go (docs)")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1, naming it, if a file is not what it would be")
    parser.add_argument("--print", action="store_true", help="print what was to be reached, and what was")
    asked = parser.parse_args()
    try:
        page = Page(load(asked.results))
    except Malformed as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    files = {asked.out / "benchmarks.md": page.render().encode()}
    files |= {asked.out / "benchmarks" / name: plot.encode() for name, plot in page.plots.items()}
    gone = sorted(set((asked.out / "benchmarks").glob("*.svg")) - set(files))
    if asked.print:
        print(on_terminal(page.verdicts()))
    if asked.check:
        stale = [path for path, content in files.items() if not path.is_file() or path.read_bytes() != content] + gone
        for path in stale:
            print(f"report: {path} is stale: run bench/report.py", file=sys.stderr)
        return 1 if stale else 0
    for path in gone:
        path.unlink()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
