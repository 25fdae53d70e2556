"""One SVG of bars for each comparison: hand-written, so that no library has to be installed."""

from math import isinf, log10
from pathlib import Path
from xml.sax.saxutils import escape

from bench.page import Story, shown
from bench.verdicts import figure
from bench.workloads import Column, Workload

WIDTH, LABEL, VALUE, BAR, GAP = 720, 190, 90, 16, 6
COLOURS = {"andon": "#c2410c", "raw": "#9ca3af"}
OTHER = "#475569"


def write(story: Story, folder: Path) -> None:
    for workload in story.workloads:
        if text := plot(story, workload):
            (folder / f"comparison-{workload.name.lower()}.svg").write_text(text, "utf-8")


def plot(story: Story, workload: Workload) -> str:
    """The compared columns of a workload below each other; empty if there are none."""
    parts, top = list[str](), 8
    for column in (one for one in workload.columns if one.better):
        rows = _rows(story, workload, column)
        if rows:
            parts.append(_bars(column, rows, top))
            top += 30 + len(rows) * (BAR + GAP) + 10
    if not parts:
        return ""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" '
        f'height="{top}" font-family="sans-serif" font-size="12">\n'
        f"<title>{escape(workload.name)}: {escape(workload.title)}</title>\n"
        f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _rows(story: Story, workload: Workload, column: Column) -> list[tuple[str, str, float]]:
    found = []
    for system in story.systems:
        value = figure(story.results, workload.name, system.key, column)
        if value is not None and not isinf(value) and value > 0:
            found.append((system.product, system.label, float(value)))
    return sorted(found, key=lambda row: row[2], reverse=column.better == "more")


def _bars(column: Column, rows: list[tuple[str, str, float]], top: int) -> str:
    """On a logarithmic scale that begins a tenth below the least: the figures differ that much."""
    least, most = min(row[2] for row in rows) / 10, max(row[2] for row in rows)
    room = WIDTH - LABEL - VALUE
    scale = room / max(log10(most / least), 0.1)
    better = "less is better" if column.better == "less" else "more is better"
    title = f"{column.title} ({better}, logarithmic)"
    lines = [f'<text x="8" y="{top + 16}" font-weight="bold">{escape(title)}</text>']
    for place, (product, label, value) in enumerate(rows):
        y = top + 26 + place * (BAR + GAP)
        width = scale * log10(value / least)
        fill = COLOURS.get(product, OTHER)
        lines += [
            f'<text x="{LABEL - 6}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{fill}"/>',
            f'<text x="{LABEL + width + 5:.1f}" y="{y + 12}">{shown(value, column.unit)}</text>',
        ]
    return "\n".join(lines)
