"""Writes plots as SVG: bars for comparisons, lines for growth. Needs only the standard library."""

import math
from html import escape

WIDTH = 760
COLOURS = ["#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#64748b", "#0e7490", "#b45309"]
ROLES = {"ours": "#c2410c", "other": "#fdba74", "yardstick": "#94a3b8", "peer": "#60a5fa"}


def svg(height, title, parts):
    style = "text{font:12px sans-serif;fill:#334155}.title{font-weight:bold;font-size:13px}.grid{stroke:#e2e8f0}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    back = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{style}</style>", back, *parts, "</svg>", ""])


def text(x, y, words, anchor="start", kind=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def bars(title, values, number):
    """Draws one bar for each (label, value, role). The scale is logarithmic if values differ more than fiftyfold."""
    left, right, step = 260, WIDTH - 70, 22
    most, least = max(value for _, value, _ in values), min(value for _, value, _ in values)
    logarithmic = most / least > 50
    floor = 10 ** math.floor(math.log10(least)) / 2

    def length(value):
        share = math.log(value / floor) / math.log(most / floor) if logarithmic else value / most
        return max(share * (right - left), 1)

    parts = [text(10, 20, title + (", logarithmic" if logarithmic else ""), kind="title")]
    for index, (label, value, role) in enumerate(values):
        y = 34 + index * step
        parts.append(text(left - 8, y + 13, label, "end"))
        parts.append(f'<rect x="{left}" y="{y}" width="{length(value):.1f}" height="{step - 6}" fill="{ROLES[role]}"/>')
        parts.append(text(left + length(value) + 5, y + 13, number(value)))
    return svg(40 + len(values) * step, title, parts)


def overview(rows, dark):
    """Draws how many times better than the best peer each (title, own value, times) is, on a logarithmic scale around 1."""
    ink, paper, grid = ("#e2e8f0", "#0d1117", "#334155") if dark else ("#334155", "#ffffff", "#cbd5e1")
    width, left, right, top, step = 860, 330, 700, 56, 30
    low, high = 0.25, 128
    x = lambda times: left + math.log(times / low) / math.log(high / low) * (right - left)
    word = lambda at, y, words, anchor="start", more="": (
        f'<text x="{at:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'
    )
    bottom = top + len(rows) * step
    parts = [word(10, 22, "ndarray-shm beside the best peer of each kind, same machine, same run", more='font-weight="bold"')]
    for tick in (1, 4, 16, 64):
        parts.append(f'<path d="M{x(tick):.1f} {top - 6}V{bottom}" stroke="{ink if tick == 1 else grid}" stroke-width="1"/>')
        parts.append(word(x(tick), top - 12, "as fast" if tick == 1 else f"{tick} times", "middle", 'font-size="11"'))
    for index, (title, own, times) in enumerate(rows):
        y = top + index * step
        begin, end = sorted((x(1), x(times)))
        better = times >= 0.995
        parts.append(word(left - 12, y + 17, title, "end"))
        parts.append(
            f'<rect x="{begin:.1f}" y="{y + 4}" width="{max(end - begin, 2):.1f}" height="{step - 11}" rx="2" '
            f'fill="{"#f97316" if better else "#94a3b8"}"/>'
        )
        parts.append(word(end + 6, y + 17, f"{times:.3g}", more='font-weight="bold"'))
        parts.append(word(width - 10, y + 17, own, "end", 'font-size="11"'))
    parts.append(word(width - 10, top - 12, "ndarray-shm", "end", 'font-size="11"'))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 14}" role="img">',
            "<title>ndarray-shm beside the best peer of each kind</title>",
            f"<style>text{{font-family:sans-serif;font-size:13px;fill:{ink}}}</style>",
            f'<rect width="{width}" height="{bottom + 14}" rx="6" fill="{paper}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def decades(least, most):
    return [10.0**power for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)]


def short(value, binary):
    """Writes 1024 as 1 Ki for sizes, and 1000 as 1k for other numbers."""
    base, names = (1024, ["", " KiB", " MiB", " GiB"]) if binary else (1000, ["", "k", "M", "G"])
    place = 0
    while value >= base and place < len(names) - 1:
        value, place = value / base, place + 1
    return f"{value:g}{names[place]}"


def lines(title, x_name, unit, xs, series):
    """Draws one line for each series of {label, points}, on logarithmic axes. A point may be None."""
    left, right, places = 70, WIDTH - 30, []
    at, row = left, 0
    for one in series:
        width = 34 + 7 * len(one["label"])
        if at + width > right and at > left:
            at, row = left, row + 1
        places.append((at, 32 + 16 * row))
        at += width
    top = 60 + 16 * row
    height = 320 + top
    bottom = height - 50
    points = [point for one in series for point in one["points"] if point]
    low, high = decades(min(points), max(points))[0], decades(min(points), max(points))[-1]

    def x_of(value):
        return left + (right - left) * math.log(value / xs[0]) / math.log(xs[-1] / xs[0])

    def y_of(value):
        return bottom - (bottom - top) * math.log(value / low) / math.log(high / low)

    parts = [text(10, 20, f"{title} ({unit})", kind="title")]
    for value in decades(low, high):
        parts.append(f'<path d="M{left} {y_of(value):.1f}H{right}" class="grid"/>')
        parts.append(text(left - 8, y_of(value) + 4, f"{value:g}", "end"))
    for value in xs[:: max(1, len(xs) // 8)]:
        parts.append(f'<path d="M{x_of(value):.1f} {top}V{bottom}" class="grid"/>')
        parts.append(text(x_of(value), bottom + 18, short(value, "size" in x_name), "middle"))
    parts.append(text((left + right) / 2, height - 10, x_name, "middle"))
    for colour, one, (at, row) in zip(COLOURS, series, places):
        known = [(x_of(x), y_of(y)) for x, y in zip(xs, one["points"]) if y]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in known)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in known]
        parts.append(f'<rect x="{at}" y="{row}" width="10" height="10" fill="{colour}"/>')
        parts.append(text(at + 14, row + 10, one["label"]))
    return svg(height, title, parts)
