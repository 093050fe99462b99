"""Charts as plain shapes: horizontal bars, and lines over time. `svg` and `png` draw the same shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, TypeAlias

from PIL import Image, ImageDraw, ImageFont

Role: TypeAlias = Literal["bar", "accent", "line", "second", "grid", "text", "muted"]
WIDTH = 720
LEFT = 210
RIGHT = 130
BAR, GAP = 22, 10
PLOT_HEIGHT = 200
COLOURS: dict[Role, str] = {
    "bar": "#5b8def", "accent": "#e07a2f", "line": "#3b6fd4", "second": "#e07a2f",
    "grid": "#d8dde6", "text": "#1c2430", "muted": "#5d6878",
}  # fmt: skip


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    role: Role


@dataclass(frozen=True)
class Polyline:
    points: tuple[tuple[float, float], ...]
    role: Role


@dataclass(frozen=True)
class Label:
    x: float
    y: float
    """The baseline of the text."""
    text: str
    role: Role = "text"
    anchor: Literal["start", "middle", "end"] = "start"


Shape: TypeAlias = "Rectangle | Polyline | Label"


@dataclass(frozen=True)
class Chart:
    """Shapes on a canvas of `WIDTH` x `height` pixels. `title` names the quantity and its unit."""

    title: str
    height: int
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Bar:
    """A bar with a text after it. `least` and `greatest` become a whisker if they differ."""

    name: str
    value: float
    note: str
    least: float | None = None
    greatest: float | None = None
    accent: bool = False


@dataclass(frozen=True)
class Series:
    name: str
    points: tuple[tuple[float, float], ...]


def bars(title: str, rows: Sequence[Bar]) -> Chart:
    """A chart with one bar per row, all from 0 and on one scale."""
    most = max((row.greatest or row.value for row in rows), default=1.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / most
    shapes: list[Shape] = []
    for number, row in enumerate(rows):
        y = number * (BAR + GAP)
        shapes.append(Label(LEFT - 8, y + 16, row.name, anchor="end"))
        shapes.append(Rectangle(LEFT, y, max(1.0, row.value * scale), BAR, "accent" if row.accent else "bar"))
        if row.least is not None and row.greatest is not None and row.greatest > row.least:
            middle = y + BAR / 2
            shapes.append(Polyline(((LEFT + row.least * scale, middle), (LEFT + row.greatest * scale, middle)), "text"))
        end = LEFT + max(row.value, row.greatest or 0.0) * scale
        shapes.append(Label(end + 6, y + 16, row.note, "muted"))
    return Chart(title, len(rows) * (BAR + GAP), tuple(shapes))


def lines(title: str, series: Sequence[Series], unit: str = "") -> Chart:
    """A chart of values over seconds, from 0, with at most two series."""
    points = [point for one in series for point in one.points]
    last = max((x for x, _ in points), default=1.0) or 1.0
    top = nice(max((y for _, y in points), default=1.0))
    left, right, bottom = 70, WIDTH - 20, PLOT_HEIGHT

    def position(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * x / last, bottom - (bottom - 24) * y / top

    shapes: list[Shape] = []
    for y in ticks(top):
        shapes.append(Polyline((position(0, y), position(last, y)), "grid"))
        shapes.append(Label(left - 8, position(0, y)[1] + 4, f"{y:,.4g}", "muted", "end"))
    for x in ticks(last):
        shapes.append(Label(position(x, 0)[0], bottom + 20, f"{x:.3g} s", "muted", "middle"))
    roles: tuple[Role, Role] = ("line", "second")
    for number, (one, role) in enumerate(zip(series, roles, strict=False)):
        shapes.append(Polyline(tuple(position(x, y) for x, y in one.points), role))
        if len(series) > 1:
            shapes.append(Rectangle(left + 150 * number, 2, 10, 10, role))
            shapes.append(Label(left + 150 * number + 15, 12, one.name, "muted"))
    return Chart(f"{title}, {unit}" if unit else title, bottom + 28, tuple(shapes))


def nice(value: float) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that is not below the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999))


def ticks(last: float) -> list[float]:
    """About five round numbers from 0 to `last`."""
    step = nice(last / 5)
    return [number * step for number in range(int(last / step * 1.001) + 1)]


def svg(chart: Chart) -> str:
    """Inline SVG. The page defines the colours of its classes."""
    parts = [_svg_shape(shape) for shape in chart.shapes]
    head = f'<svg viewBox="0 0 {WIDTH} {chart.height}" role="img" aria-label="{escape(chart.title)}">'
    return "\n".join([head, *parts, "</svg>"])


def _svg_shape(shape: Shape) -> str:
    if isinstance(shape, Rectangle):
        where = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f'<rect class="{shape.role}" {where} rx="2"/>'
    if isinstance(shape, Polyline):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return f'<polyline class="stroke {shape.role}" points="{points}"/>'
    where = f'x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}"'
    return f'<text class="{shape.role}" {where}>{escape(shape.text)}</text>'


def png(charts: Sequence[Chart]) -> Image.Image:
    """All charts below one another, in twice the size on a white ground."""
    zoom, margin, head = 2, 24, 34
    height = sum(chart.height + head + margin for chart in charts) + margin
    image = Image.new("RGB", ((WIDTH + 2 * margin) * zoom, height * zoom), "white")
    draw = ImageDraw.Draw(image)
    font, bold = ImageFont.load_default(13 * zoom), ImageFont.load_default(15 * zoom)
    y = float(margin)
    for chart in charts:
        draw.text((margin * zoom, y * zoom), chart.title, COLOURS["text"], bold)
        for shape in chart.shapes:
            _draw_shape(draw, shape, margin, y + head, zoom, font)
        y += chart.height + head + margin
    return image


def _draw_shape(draw: ImageDraw.ImageDraw, shape: Shape, left: float, top: float, zoom: int, font: object) -> None:
    colour = COLOURS[shape.role]
    if isinstance(shape, Rectangle):
        x, y = (left + shape.x) * zoom, (top + shape.y) * zoom
        draw.rectangle((x, y, x + shape.width * zoom, y + shape.height * zoom), colour)
    elif isinstance(shape, Polyline):
        points = [((left + x) * zoom, (top + y) * zoom) for x, y in shape.points]
        draw.line(points, colour, width=zoom if shape.role == "grid" else 2 * zoom)
    else:
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
        draw.text(((left + shape.x) * zoom, (top + shape.y) * zoom), shape.text, colour, font, anchor=anchor)  # type: ignore[arg-type]
