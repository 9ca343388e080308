"""The timeline of a run as an SVG: faults, requests and answers for each second, and how long keys took.

Written by hand, without a plotting library: three bands over one axis of seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .faults import Befell
from .histories import Exchange

WIDTH, LEFT, RIGHT = 1000, 135, 20
BAND = 130
ROW = 14
COLOURS = {"success": "#2f7d4f", "wait": "#c9a227", "refusal": "#8a8f98", "error": "#b3403a"}
NAMES = {
    "success": "success",
    "wait": "come back (202, 409)",
    "refusal": "definite refusal",
    "error": "5xx or no answer",
}


def timeline(
    title: str,
    seconds: float,
    loaded: float,
    exchanges: Sequence[Exchange],
    befell: Sequence[Befell],
    recoveries: Sequence[tuple[float, float]],
) -> str:
    """``loaded``: when load and faults ended. ``recoveries``: when a key was settled, and after how long."""
    seconds = max(seconds, 1.0)
    kinds = sorted({one.kind for one in befell})
    top = 40
    fault_height = max(1, len(kinds)) * ROW + 10
    rates_at = top + fault_height + 45
    recoveries_at = rates_at + BAND + 50
    height = recoveries_at + BAND + 60

    def x(at: float) -> float:
        return round(LEFT + min(at, seconds) / seconds * (WIDTH - LEFT - RIGHT), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(8, 20, title, size=14),
        f'<rect x="{x(loaded)}" y="{top}" width="{max(0.0, round(WIDTH - RIGHT - x(loaded), 1))}" '
        f'height="{height - top - 40}" fill="#f1f4f1"/>',
        _text(min(x(loaded) + 4, WIDTH - RIGHT - 40), height - 45, "settling", colour="#5a6b5f"),
    ]
    for row, kind in enumerate(kinds):
        y = top + row * ROW
        parts.append(_text(LEFT - 6, y + 10, kind, anchor="end", size=10, colour="#555555"))
        for one in befell:
            if one.kind == kind:
                width = (
                    max(2.0, x(min(one.ended, loaded)) - x(one.began)) if one.ended != float("inf") else 2.0
                )
                parts.append(
                    f'<rect x="{x(one.began)}" y="{y + 2}" width="{round(width, 1)}" height="{ROW - 4}" '
                    f'fill="#b3403a" opacity="0.75"><title>{escape(f"{kind}: {one.victim}")}</title></rect>'
                )
    parts += _rates(exchanges, seconds, rates_at, x)
    parts += _recoveries(recoveries, recoveries_at, x)
    step = next(step for step in (1, 2, 5, 10, 30, 60, 120, 300, 600, 3600) if seconds / step <= 15)
    for tick in range(0, int(seconds) + 1, step):
        parts.append(_text(x(tick), height - 25, f"{tick} s", anchor="middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 11, colour: str = "#222222"
) -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


def kind_of(exchange: Exchange) -> str:
    """How an exchange ended, for the picture and the figures."""
    if exchange.status is None or exchange.status >= 500:
        return "error"
    if exchange.succeeded:
        return "success"
    return "refusal" if exchange.definitive else "wait"


def _rates(exchanges: Sequence[Exchange], seconds: float, top: float, x: object) -> Iterable[str]:
    """Stacked bars, one for each slice of time."""
    assert callable(x)
    slices = min(200, max(1, int(seconds)))
    size = seconds / slices
    counts = [dict.fromkeys(COLOURS, 0) for _ in range(slices)]
    for exchange in exchanges:
        counts[min(slices - 1, int(exchange.ended / size))][kind_of(exchange)] += 1
    most = max(1, *(sum(one.values()) for one in counts))
    yield _text(LEFT, top - 8, f"answers for each second (at most {most / size:.0f})")
    for place, (kind, colour) in enumerate(COLOURS.items()):
        yield f'<rect x="{LEFT + 265 + place * 150}" y="{top - 17}" width="10" height="10" fill="{colour}"/>'
        yield _text(LEFT + 279 + place * 150, top - 8, NAMES[kind], size=10)
    # One path for each colour: thousands of single shapes would make a picture that is slow to load.
    bars: dict[str, list[str]] = {kind: [] for kind in COLOURS}
    for index, one in enumerate(counts):
        y = top + BAND
        left, right = x(index * size), x((index + 1) * size)
        wide = round(max(0.5, right - left - 0.4), 1)
        for kind in COLOURS:
            tall = round(one[kind] / most * BAND, 1)
            y -= tall
            if tall:
                bars[kind].append(f"M{left} {round(y, 1)}h{wide}v{tall}h-{wide}z")
    for kind, colour in COLOURS.items():
        yield f'<path d="{"".join(bars[kind])}" fill="{colour}"/>'
    yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top + BAND}" y2="{top + BAND}" stroke="#999999"/>'


def _recoveries(recoveries: Sequence[tuple[float, float]], top: float, x: object) -> Iterable[str]:
    """A dot for each key that met trouble: when it was settled, and how long that took."""
    assert callable(x)
    longest = max([1.0, *(took for _, took in recoveries)])
    yield _text(
        LEFT, top - 8, f"recoveries: {len(recoveries)} keys, seconds from the first trouble to the answer"
    )
    for fraction in (0.0, 0.5, 1.0):
        y = round(top + BAND - fraction * BAND, 1)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#dddddd"/>'
        yield _text(LEFT - 6, y + 4, f"{longest * fraction:.0f} s", anchor="end")
    dots = (f"M{x(at)} {round(top + BAND - took / longest * BAND, 1)}h0" for at, took in recoveries)
    round_dots = 'stroke="#274c77" stroke-width="3" stroke-linecap="round" opacity="0.6"'
    yield f'<path d="{"".join(dots)}" {round_dots}/>'
