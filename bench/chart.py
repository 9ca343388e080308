"""A bar for each variant, as an SVG: the application's share and the database's. Written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, LEFT, RIGHT, ROW, HEAD = 900, 230, 60, 20, 34
APPLICATION, DATABASE = "#2f7d4f", "#c9a227"

Bar = tuple[str, str, float, float]
"""Group, name, microseconds of the application and of the database."""


def chart(title: str, bars: Sequence[Bar]) -> str:
    longest = max(app + database for _, _, app, database in bars)
    scale = (WIDTH - LEFT - RIGHT) / max(1.0, longest)
    parts: list[str] = [_text(8, 20, title, size=14)]
    for x, colour, name in ((LEFT + 180, APPLICATION, "application"), (LEFT + 300, DATABASE, "database")):
        parts += [_bar(x, 10, 12, 12, colour), _text(x + 18, 20, name)]
    y, group = HEAD, None
    for of, name, app, database in bars:
        if of != group:
            parts.append(_text(8, y + 22, of, size=12))
            y, group = y + 30, of
        parts += [
            _text(LEFT - 8, y + 14, name, anchor="end"),
            _bar(LEFT, y + 3, app * scale, ROW - 6, APPLICATION),
            _bar(LEFT + app * scale, y + 3, database * scale, ROW - 6, DATABASE),
            _text(LEFT + (app + database) * scale + 5, y + 14, f"{app + database:.0f}"),
        ]
        y += ROW
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 12}" font-family="sans-serif" '
        f'font-size="11" role="img" aria-label="{escape(title)}">'
    )
    return (
        "\n".join([head, f'<rect width="{WIDTH}" height="{y + 12}" fill="#ffffff"/>', *parts, "</svg>"])
        + "\n"
    )


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {where} fill="#333333">{escape(text)}</text>'
