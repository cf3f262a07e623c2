"""Plots as SVG, by hand: strips and curves, on a ground of their own, so that a dark page shows them as a light one does."""
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 760
INK, FAINT, GRID, WHITE = "#1f2328", "#656d76", "#e4e7eb", "#ffffff"
ACCENT, IDEAL = "#e8590c", "#868e96"
PALETTE = ("#1971c2", "#2b8a3e", "#9c36b5", "#0c8599", "#a61e4d", "#846358", "#5c7c0a", "#3b3b98", "#b08900")
LINE = 15  # a line of text
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Strip:
    """A bar from `begin` to `end`; `dots` on it, a line to `most` if that is further, `told` behind it."""
    label: str
    colour: str
    light: bool
    begin: float
    end: float
    most: float = 0
    dots: Sequence[float] = ()
    told: str = ""


@dataclass(frozen=True)
class Curve:
    label: str
    colour: str
    dashed: bool
    points: Points
    rounds: Sequence[Points] = ()


@dataclass(frozen=True)
class Axis:
    label: str
    ticks: Sequence[tuple[float, str]]
    place: Callable[[float], float]  # of a value, from 0 to 1


def linear(label: str, most: float) -> Axis:
    power = 10 ** math.floor(math.log10(most))
    step = next(power * part for part in (0.2, 0.5, 1, 2) if most / (power * part) <= 7)
    count = math.ceil(most / step)
    return Axis(label, [(step * n, grouped(step * n)) for n in range(count + 1)], lambda value: value / step / count)


def logarithmic(label: str, values: Iterable[float], name: Callable[[float], str], decades: bool = False) -> Axis:
    """From one step of 1, 2, 5 to another; only decades are named where there are many."""
    seen = [max(value, 0.1) for value in values]
    low, high = min(seen) * 1.001, max(seen) * 0.999
    steps = [part * 10.0**power for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1) for part in (1, 2, 5, 10)]
    bottom = max(step for step in steps if step <= low)
    top = min(step for step in steps if step >= high and step > bottom)
    named = [step for step in dict.fromkeys(steps) if bottom <= step <= top and (math.log10(step) % 1 == 0 or not decades and top / bottom <= 100)]
    return Axis(label, [(step, name(step)) for step in named], lambda value: math.log(max(value, bottom) / bottom) / math.log(top / bottom))


def percentiles(label: str) -> Axis:
    """The rarer, the more room: more than half of it for the last tenth. The maximum stands at the right end."""
    ticks = [(0, "0"), (50, "50"), (75, "75"), (90, "90"), (95, "95"), (98, "98"), (99, "99"), (100, "max")]
    return Axis(label, ticks, lambda value: 1.0 if value >= 100 else -math.log10(1 - value / 100) / 2.3)


def grouped(value: float) -> str:
    return f"{value:,.10g}".replace(",", " ")


def milliseconds(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def strips(title: str, groups: Sequence[tuple[str, Sequence[Strip]]], axis: Axis) -> str:
    left, width, height = 200, 480, 24
    body, top = [], 44
    for heading, group in groups:
        body.append(text(16, top + 10, heading, fill=FAINT))
        top += 20 if heading else 0
        bottom = top + height * len(group)
        body += grid(axis, left, width, top, bottom)
        for middle, strip in zip(range(top + height // 2, bottom, height), group, strict=True):
            look: dict[str, str | float] = {"stroke": strip.colour, "fill": strip.colour, "opacity": 0.38 if strip.light else 0.9}
            furthest = max(strip.end, strip.most, *strip.dots)
            begin, end, most = (left + axis.place(value) * width for value in (strip.begin, strip.end, furthest))
            body += [tag("path", d=f"M{end:.1f} {middle} H{most:.1f} m0 -5 v10", **look)] if strip.most else []
            body.append(tag("rect", x=begin, y=middle - 7, width=max(end - begin, 1), height=14, rx=2, **look | {"stroke": "none"}))
            body += [tag("circle", cx=left + axis.place(dot) * width, cy=middle, r=2.6, fill=INK, stroke=WHITE) for dot in strip.dots]
            body.append(text(left - 8, middle + 4, strip.label, "end", font_weight=600 if strip.colour == ACCENT else 400))
            body.append(text(most + 8, middle + 4, strip.told, stroke=WHITE, stroke_width=3, paint_order="stroke"))
        top = bottom + 38
    return figure(title, top + 10, [*body, text(left + width / 2, top, axis.label, "middle", fill=FAINT)])


def curves(title: str, panels: Sequence[tuple[str, Sequence[Curve]]], x: Axis, y: Axis) -> str:
    """Each named where it ends, ours on top; rounds are thin, their median is thick."""
    left, width, height = 76, 494, 250
    body, top = [], 44
    for heading, group in panels:
        body.append(text(16, top + 6, heading, fill=FAINT))
        top += 20 if heading else 0
        bottom, middle = top + height, top + height // 2
        body += grid(x, left, width, top, bottom)
        for value, name in y.ticks:
            at = bottom - y.place(value) * height
            body += [tag("path", d=f"M{left} {at:.1f} h{width}", stroke=GRID), text(left - 8, at + 4, name, "end", fill=FAINT)]
        ends = []
        for curve in sorted(group, key=lambda curve: curve.colour == ACCENT):
            look = {"fill": "none", "stroke": curve.colour, "stroke_dasharray": "6 4" if curve.dashed else "none"}
            weights = [(1, 0.35)] * len(curve.rounds) + [(3 if curve.colour == ACCENT else 2, 1)]
            for points, (weight, opacity) in zip((*curve.rounds, curve.points), weights, strict=True):
                places = [(left + x.place(at) * width, bottom - y.place(value) * height) for at, value in points]
                drawn = " L".join(f"{right:.1f} {down:.1f}" for right, down in places)
                body.append(tag("path", d=f"M{drawn}", stroke_width=weight, stroke_opacity=opacity, **look))
            body += [tag("circle", cx=right, cy=down, r=3.5, fill=curve.colour) for right, down in places if len(places) < 9]
            ends.append((places[-1], curve))
        for ((right, down), curve), spot in zip(ends, apart([end[1] for end, _ in ends], top + 4, bottom - 4), strict=True):
            body.append(tag("path", d=f"M{right + 3:.1f} {down:.1f} L{left + width + 18} {spot:.1f}", stroke=curve.colour, stroke_dasharray="1 3"))
            body.append(text(left + width + 22, spot + 4, curve.label, fill=curve.colour, font_weight=600))
        body.append(text(left + width / 2, bottom + 36, x.label, "middle", fill=FAINT))
        body.append(text(18, middle, y.label, "middle", fill=FAINT, transform=f"rotate(-90 18 {middle})"))
        top = bottom + 58
    return figure(title, top - 10, body)


def apart(places: Sequence[float], top: float, bottom: float) -> list[float]:
    """The same places, moved until no two are nearer than a line of text, and none is below the bottom."""
    moved = list(places)
    order = sorted(range(len(places)), key=lambda index: places[index])
    for index in order:
        moved[index] = max(moved[index], top)
        top = moved[index] + LINE
    for index in reversed(order):
        moved[index] = min(moved[index], bottom)
        bottom = moved[index] - LINE
    return moved


def grid(axis: Axis, left: int, width: int, top: int, bottom: int) -> list[str]:
    """The lines of an axis that goes to the right, and its figures below."""
    parts = []
    for value, name in axis.ticks:
        at = left + axis.place(value) * width
        parts += [tag("path", d=f"M{at:.1f} {top} V{bottom}", stroke=GRID), text(at, bottom + 17, name, "middle", fill=FAINT)]
    return [*parts, tag("path", d=f"M{left} {top} V{bottom} h{width}", fill="none", stroke=FAINT)]


def figure(title: str, height: int, body: Iterable[str]) -> str:
    font = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
    ground = tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=8, fill=WHITE, stroke=GRID)
    content = "\n".join(["", tag("title", escape(title)), ground, text(16, 26, title, font_weight=600, font_size=13), *filter(None, body), ""])
    return tag("svg", content, xmlns="http://www.w3.org/2000/svg", width=WIDTH, height=height, role="img", font_family=font, font_size=12) + "\n"


def text(x: float, y: float, words: str, anchor: str = "start", *, fill: str = INK, **more: str | float) -> str:
    return tag("text", escape(words), x=x, y=y, text_anchor=anchor, fill=fill, **more) if words else ""


def tag(name: str, content: str = "", /, **attributes: str | float) -> str:
    told = "".join(f' {key.replace("_", "-")}="{round(value, 2) if isinstance(value, float) else value}"' for key, value in attributes.items())
    return f"<{name}{told}>{content}</{name}>" if content else f"<{name}{told}/>"
