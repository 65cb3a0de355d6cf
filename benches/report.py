"""Turns measurements into tables, plots, and the generated parts of docs/performance.md.

    report.py PEERS.json [COST.json]    writes docs/performance.md and docs/performance/*.svg
"""

import json
import re
import sys
from pathlib import Path

import plot

LATENCIES = (("99 %", "p99"), ("least", "least"))
DOCS = Path(__file__).parent.parent / "docs"


def rate(size):
    """Turns seconds into GB/s."""
    return lambda seconds: size / seconds / 1e9


def micro(seconds):
    return seconds * 1e6


def number(value):
    """Formats a number with three significant digits and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


class Topic:
    """How a topic is shown: its title, its unit, and whether more or less is better.

    Groups of a topic with an axis become the columns of one table, if their names differ only in the last part. The overview has
    those in `chosen`.
    """

    def __init__(self, title, unit, more, convert, key="seconds", source="", extra=(), axis="", chosen=()):
        self.title, self.unit, self.more, self.convert = title, unit, more, convert
        self.key, self.source, self.extra = key, source, extra
        self.axis, self.chosen = axis, chosen

    def value(self, row):
        return self.convert(row[self.key]) if self.key in row else None

    def best(self, rows, role):
        values = [(self.value(row), row) for row in rows if row["role"] == role and self.value(row) is not None]
        if not values:
            return None, None
        return (max if self.more else min)(values, key=lambda pair: pair[0])

    def times(self, value, other):
        """Returns how many times better one value is than another."""
        return value / other if self.more else other / value


def size_of(results):
    mib = results["bytes"] >> 20
    return f"{mib >> 10} GiB" if mib % 1024 == 0 else f"{mib} MiB"


def topics(results):
    gbps, size = rate(results["bytes"]), size_of(results)
    latencies = tuple((f"{name}, us", lambda row, key=key: number(micro(row[key]))) for name, key in LATENCIES)
    counts = (
        ("us each", lambda row: number(micro(row["seconds"]))),
        ("descriptors", lambda row: number(row["descriptors"])),
        ("mappings", lambda row: number(row["mappings"])),
        ("ended by", lambda row: (row.get("ended") or "").replace("|", " ")[:60]),
    )
    whole = (
        ("us each, sent and read there", lambda row: number(micro(row["whole"])) if "whole" in row else ""),
        ("arrays", lambda row: number(row["made"])),
        ("descriptors", lambda row: number(row["descriptors"])),
        ("mappings", lambda row: number(row["mappings"])),
    )
    rates = (("read, frames/s", lambda row: number(row["read"])),)
    wakes = (("wake-ups/s", lambda row: number(row["wakes"])),)
    reads = (("read again, GB/s", lambda row: number(gbps(row["warm"]))),)
    known = {
        "fill": Topic(f"Create {size} and fill it by copying, cold", "GB/s", True, gbps),
        "drop": Topic(f"Drop {size}", "ms", False, lambda seconds: seconds * 1e3, "drop", "fill"),
        "attach": Topic(f"Attach {size} in another process and read it once", "GB/s", True, gbps, extra=reads),
        "recycle": Topic(f"Fill {size} of recycled memory", "GB/s", True, gbps),
        "many": Topic("Arrays of 1 KiB open at once with 1,024 descriptors", "arrays", True, float, "made", extra=counts),
        "arena": Topic("Make very many arrays of 1 KiB and keep them", "us each", False, micro, extra=whole),
        "small": Topic("Create, fill, publish and drop 4 KiB", "us", False, micro),
        "round-trip": Topic("1 MiB to another process and back, not copied", "us", False, micro, extra=latencies),
        "stream-latency": Topic(
            "A frame from its writer to its readers", "us", False, micro, axis="size of a frame in bytes", chosen=("64 B", "1 MiB")
        ),
        "stream-rate": Topic("1080p frames of u16, copied by the writer", "frames/s", True, lambda each: 1 / each, extra=rates),
        "stream-idle": Topic("Processor time of a waiting reader", "ms/s", False, lambda share: share * 1e3, extra=wakes),
        "stream-writer": Topic("A frame of 64 bytes, for its writer", "us", False, micro, axis="readers"),
    }
    return {name: topic for name, topic in known.items() if (topic.source or name) in results["topics"]}


def table(lines):
    """Returns a Markdown table with aligned columns, numbers to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    numeric = [all(re.fullmatch(r"[-\d.,%() ]*", line[column]) for line in lines[1:]) for column in range(len(widths))]

    def show(line):
        cells = (cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(line, widths, numeric))
        return f"| {' | '.join(cells)} |"

    ruler = ("-" * (width + 1) + (":" if right else "-") for width, right in zip(widths, numeric))
    return "\n".join([show(lines[0]), f"|{'|'.join(ruler)}|", *map(show, lines[1:])])


def disturbed(rows):
    """Returns how much of the CPUs the host and other programs had meanwhile."""
    shares = ([row[key] for row in rows if key in row] for key in ("steal", "others"))
    return [f"{sum(each) / len(each):.1%}" if each else "" for each in shares]


def group_table(topic, rows):
    yardstick, _ = topic.best(rows, "yardstick")
    peer, _ = topic.best(rows, "peer")
    head = ["", topic.unit, *(["of the yardstick"] if yardstick else []), *(["times the best peer"] if peer else [])]
    lines = [[*head, *(name for name, _ in topic.extra), "steal", "others"]]
    for row in rows:
        value = topic.value(row)
        if value is None:
            lines.append([row["label"], f"missing: {row['missing'][:80]}", *[""] * (len(lines[0]) - 2)])
            continue
        label = f"**{row['label']}**" if row["role"] == "ours" else row["label"]
        compared = [f"{value / yardstick:.2f}"] if yardstick else []
        if peer:
            compared.append(f"{topic.times(value, peer):.2f}" if row["role"] != "yardstick" else "")
        extra = [show(row) for _, show in topic.extra]
        lines.append([label, number(value), *compared, *extra, *disturbed([row])])
    return table(lines)


def charts(results, name):
    """Returns the groups of a topic with an axis: by title, the rows of each column."""
    found = {}
    for group, rows in results["topics"][name].items():
        title, column = group.rsplit(", ", 1)
        found.setdefault(title, {})[column] = divided(rows)
    return found


def divided(rows):
    """Adds to rows what is known of one from its parts."""
    parts = [row["seconds"] for row in rows if row["role"] == "part" and "seconds" in row]
    whole = next((row for row in rows if row["role"] == "ours" and "frame" in row), None)
    if not parts or not whole:
        return rows
    more = {"of it `frame()`": whole["frame"], "of it `commit()`": whole["seconds"] - whole["frame"]}
    if any("refuse" in row["label"] for row in rows):  # what a wake takes depends on what the woken processes do meanwhile
        more["without the calls above"] = whole["seconds"] - sum(parts)
    added = [whole | {"label": label, "role": "other", "seconds": seconds} for label, seconds in more.items()]
    return [rows[0], *added[:2], *rows[1:], *added[2:]]


def axis_table(topic, columns):
    """Returns a table with a column for each group, and a plot's series."""
    names = list(dict.fromkeys(row["label"] for rows in columns.values() for row in rows))
    lines, series = [["", *columns, "steal", "others"]], []
    for name in names:
        cells, points, known, role = [], [], [], ""
        for rows in columns.values():
            row = next((row for row in rows if row["label"] == name), {"missing": ""})
            value = topic.value(row)
            points.append(value if value and value > 0 else None)
            if value is None:
                cells.append(f"missing: {row['missing'][:40]}" if row["missing"] else "")
                continue
            tail = f" ({number(topic.convert(row['p99']))})" if "p99" in row and topic.chosen else ""
            cells.append(f"{number(value)}{tail}")
            known.append(row)
            role = row["role"]
        label = f"**{name}**" if role == "ours" else name
        lines.append([label, *cells, *disturbed(known)])
        series.append({"label": name, "points": points})
    return table(lines), series


def place(column):
    """Returns the number that the name of a column says."""
    value, unit = column.split()
    return float(value) * {"KiB": 1 << 10, "MiB": 1 << 20}.get(unit, 1)


def shown(results, name):
    """Returns a title and a table for each group of a topic."""
    topic = topics(results)[name]
    parts = []
    if topic.axis:
        tail = ", median (99 %)" if topic.chosen else ""
        for title, columns in charts(results, name).items():
            parts.append((f"{topic.title}, {title}; {topic.unit}{tail}", axis_table(topic, columns)[0]))
        return parts
    for group, rows in results["topics"][topic.source or name].items():
        if topic.source:
            rows = [row for row in rows if topic.key in row]
        parts.append((f"{topic.title}{', ' if group else ''}{group}", group_table(topic, rows)))
    return parts


def topic(results, name):
    """Returns a topic as text for the terminal, with the topics that were measured together with it."""
    names = [name, *(other for other, found in topics(results).items() if found.source == name)]
    return "\n".join(f"\n{title}\n\n{body}" for each in names for title, body in shown(results, each))


def overview(results):
    """Returns a line of headings and one line for each comparison: the best peer, this library, and the limit."""
    lines = [["", "best peer", "ndarray-shm", "times better", "limit", "of the limit"]]
    for name, topic in topics(results).items():
        for group, rows in results["topics"][topic.source or name].items():
            if topic.axis and group.rsplit(", ", 1)[1] not in topic.chosen:
                continue
            own, _ = topic.best(rows, "ours")
            peer, best = topic.best(rows, "peer")
            limit, _ = topic.best(rows, "yardstick")
            if topic.key == "seconds" and name == "attach" and own:
                limit = max(topic.convert(row["warm"]) for row in rows if row["role"] == "ours")
            title = f"{topic.title}{', ' if group else ''}{group}"
            unit = f" {topic.unit}"
            lines.append(
                [
                    title,
                    f"{number(peer)}{unit} ({best['label']})" if peer else "",
                    f"{number(own)}{unit}" if own else "",
                    f"{topic.times(own, peer):.2f}" if own and peer else "",
                    f"{number(limit)}{unit}" if limit else "",
                    f"{own / limit:.2f}" if own and limit else "",
                ]
            )
    return lines


# The names of the overview's lines in its picture.
SHORT = {
    "Create 1 GiB and fill it by copying, cold, 1 thread": "create and fill 1 GiB",
    "Create 1 GiB and fill it by copying, cold, 2 threads": "the same, 2 threads",
    "Drop 1 GiB, 1 thread": "drop 1 GiB",
    "Drop 1 GiB, 2 threads": "the same, 2 threads",
    "Attach 1 GiB in another process and read it once": "attach to 1 GiB and read it",
    "Fill 1 GiB of recycled memory": "fill 1 GiB of recycled memory",
    "Make very many arrays of 1 KiB and keep them": "create arrays of 1 KiB",
    "Create, fill, publish and drop 4 KiB": "create, fill and drop 4 KiB",
    "1 MiB to another process and back, not copied, waiting, both processes on one CPU": "1 MiB there and back, one CPU",
    "1 MiB to another process and back, not copied, waiting, on two CPUs": "the same, two CPUs",
    "1 MiB to another process and back, not copied, polling, on two CPUs": "the same, polling",
}


def pictures(lines):
    """Draws the overview for light and for dark pages."""
    rows = [(SHORT[title], own, float(times)) for title, _, own, times, *_ in lines if title in SHORT and times]
    for dark in (False, True):
        (DOCS / "performance" / f"overview{'-dark' if dark else ''}.svg").write_text(plot.overview(rows, dark))


def heading(results):
    machine = ", ".join(f"{name}: {value}" for name, value in results["machine"].items())
    missing = [name for name, version in results["versions"].items() if version is None]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version)
    lines = [
        f"{results['date']}. {machine}.",
        f"{versions}.",
        f"Medians of {results['repetitions']}; the cases of a table took turns.",
        *([f"MISSING, and so not compared with: {', '.join(missing)}."] if missing else []),
        *(["A quick run: it shows that everything works, not how fast it is."] if results["quick"] else []),
    ]
    return "\n".join(lines)


def costs(cost):
    """Yields the name, chart and table of each part of the cost model."""
    for name, chart in cost["charts"].items():
        lines = [[chart["x"], *(f"{series['label']}, {chart['unit']}" for series in chart["series"])]]
        for x, *points in zip(chart["values"], *(series["points"] for series in chart["series"])):
            lines.append([plot.short(x, "size" in chart["x"]), *(number(point) if point else "" for point in points)])
        yield name, chart, table(lines)


def axis_parts(results, name, topic, plots):
    """Draws the plots of a topic with an axis. Yields the text."""
    for title, columns in charts(results, name).items():
        body, series = axis_table(topic, columns)
        file = "-".join(re.findall(r"\w+", f"{name} {title}")) + ".svg"
        whole = f"{topic.title}, {title}"
        drawn = [one for one in series if any(one["points"])]
        (plots / file).write_text(plot.lines(whole, topic.axis, topic.unit, [*map(place, columns)], drawn))
        tail = ", median (99 %)" if topic.chosen else ""
        yield f"![{whole}](performance/{file})\n\n{whole}; {topic.unit}{tail}:\n\n{body}"


# The topics without which there is no overview.
WHOLE = ("fill", "attach", "recycle", "many", "arena", "small", "round-trip")


def document(results, cost):
    """Writes the plots, and the text between the markers of docs/performance.md."""
    plots = DOCS / "performance"
    plots.mkdir(exist_ok=True)
    parts = {}  # what was not measured stays
    if all(name in results["topics"] for name in WHOLE):
        lines = overview(results)
        pictures(lines)
        parts = {"overview": table(lines).strip(), "machine": heading(results)}
    if any(name.startswith("stream-") for name in results["topics"]):
        parts["stream-machine"] = heading(results)
    for name, topic in topics(results).items():
        if topic.axis:
            parts[name] = "\n\n".join(axis_parts(results, name, topic, plots))
            continue
        body = "\n\n".join(f"{title}:\n\n{body}" for title, body in shown(results, name))
        bars = []
        for group, rows in results["topics"][topic.source or name].items():
            values = [(row["label"], topic.value(row), row["role"]) for row in rows if topic.value(row)]
            file = "-".join(re.findall(r"\w+", f"{name} {group}")) + ".svg"
            title = f"{topic.title}{', ' if group else ''}{group} ({topic.unit})"
            (plots / file).write_text(plot.bars(title, values, number))
            bars.append(f"![{title}](performance/{file})")
        parts[name] = "\n\n".join([*bars, body])
    if cost:
        for name, chart, body in costs(cost):
            file = f"cost-{name}.svg"
            drawn = (chart[key] for key in ("title", "x", "unit", "values", "series"))
            (plots / file).write_text(plot.lines(*drawn))
            parts[f"cost-{name}"] = f"![{chart['title']}](performance/{file})\n\n{body}"
    page = DOCS / "performance.md"
    text = page.read_text()
    for name, part in parts.items():
        begin, end = f"<!-- generated: {name} -->", "<!-- end -->"
        if begin not in text:
            print(f"{page.name} has no place for {name}", file=sys.stderr)
            continue
        before, rest = text.split(begin, 1)
        text = f"{before}{begin}\n{part}\n{end}{rest.split(end, 1)[1]}"
    page.write_text(text)


if __name__ == "__main__":
    document(*(json.loads(Path(path).read_text()) for path in [*sys.argv[1:3]]), *[None] * (3 - len(sys.argv)))
