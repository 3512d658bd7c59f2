"""JSON of the benchmarks as pictures, and as the table in the README.

    python -m benchmarks.plot FILE.json... [--out DIR]
    python -m benchmarks.plot FILE.json... --readme README.md

One PNG for each group, benchmark-GROUP.png, with a panel for each figure: its
ratio to the base loop, or the figure itself where a ratio says nothing.  Needs
matplotlib.  --readme draws nothing: it puts a table between the comments
`<!-- results -->` and `<!-- /results -->` of that file.
"""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import harness, loops, report

COLOURS = {
    "asyncio": "#9aa0a6",
    "uvloop": "#4c78a8",
    "pyfastnet": "#e45756",
    loops.LIMIT: "#54a24b",
    "blazio": "#f2cf5b",
    "talyn": "#b279a2",
    "rloop": "#9d755d",
}
FALLBACK = ("#72b7b2", "#eeca3b", "#ff9da6", "#79706e")
PANELS = 3
README_GROUPS = ("echo", "buffered", "streams", "sock", "oneshot", "http")


def colour(name: str, number: int) -> str:
    base = loops.split(name)[0]
    if name == base and base in COLOURS:
        return COLOURS[base]
    return FALLBACK[number % len(FALLBACK)]


def value_of(
    entry: Mapping[str, Any], name: str, metric: harness.Metric, base: str
) -> float:
    results = entry["loops"]
    figure = (
        harness.figure(results, name, metric.key, base) if name in results else None
    )
    if figure is None:
        return math.nan
    return figure.ratio if metric.compare else figure.median


def label(axes: Any, value: float, place: float, to_the_left: bool) -> None:
    axes.annotate(
        f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}",
        (value, place),
        xytext=(-3 if to_the_left else 3, 0),
        textcoords="offset points",
        ha="right" if to_the_left else "left",
        va="center",
        fontsize=7,
    )


def draw_panel(
    axes: Any, entries: Sequence[Mapping[str, Any]], metric: harness.Metric, base: str
) -> None:
    names = list(dict.fromkeys(n for entry in entries for n in entry["loops"]))
    if metric.compare and len(names) > 1:
        names.remove(base)
    height = 0.8 / len(names)
    # A ratio is drawn from 1, to the side on which it is.
    start = 1.0 if metric.compare else 0.0
    if metric.compare:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.axvline(1, color="black", linewidth=0.6)
    for number, name in enumerate(names):
        values = [value_of(entry, name, metric, base) for entry in entries]
        places = [row + number * height for row in range(len(entries))]
        lengths = [value - start for value in values]
        axes.barh(
            places,
            lengths,
            height,
            left=start,
            label=name,
            color=colour(name, number),
        )
        for place, value in zip(places, values, strict=True):
            if not math.isnan(value):
                label(axes, value, place, to_the_left=value < start)
    axes.margins(x=0.2)
    axes.set_yticks(
        [row + 0.4 - height / 2 for row in range(len(entries))],
        [entry["workload"] for entry in entries],
    )
    # Not invert_yaxis(): the panels share the axis.
    axes.set_ylim(len(entries) - 0.1 - height / 2, -0.1 - height / 2)
    better = "more" if metric.more else "less"
    what = f"{metric.label} ÷ {base}" if metric.compare else metric.label
    axes.set_title(f"{what} ({better} is better)", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def draw(group: str, entries: Sequence[Mapping[str, Any]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    base = harness.base_of(entries[0]["loops"])
    rows = report.parts(entries)
    width = min(PANELS, max(len(row[0]["metrics"]) for row in rows))
    heights = [1.0 + 0.2 * sum(len(e["loops"]) for e in row) for row in rows]
    figure = pyplot.figure(
        figsize=(4.6 * width, max(2.4, sum(heights))), layout="constrained"
    )
    grids = figure.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)
    for row, grid in zip(rows, grids[:, 0], strict=True):
        metrics = [harness.Metric(**m) for m in row[0]["metrics"]][:PANELS]
        panels = grid.subplots(1, len(metrics), sharey=True, squeeze=False)
        for axes, metric in zip(panels[0], metrics, strict=True):
            draw_panel(axes, row, metric, base)
    named: dict[str, Any] = {}
    for axes in figure.get_axes():
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(name, handle)
    figure.legend(
        list(named.values()),
        list(named),
        loc="outside lower center",
        ncols=min(len(named), 7),
        frameon=False,
        fontsize=8,
    )
    figure.suptitle(group, fontsize=11)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def readme_table(found: report.Report) -> str:
    groups = found.groups()
    entries = [e for group in README_GROUPS for e in groups.get(group, ())]
    entries = [
        e for e in entries if {"rate", "cpu_us"} <= {m["key"] for m in e["metrics"]}
    ]
    if not entries:
        raise SystemExit(f"benchmarks: none of {', '.join(README_GROUPS)} in the files")
    base = harness.base_of(entries[0]["loops"])
    machines = " ".join(f"{line}." for line in report.describe(found.environments))
    return (
        f"\n{report.compact_table(entries, ('rate', 'cpu_us'))}\n\n"
        f"For {base}: operations per second and server CPU per operation; for the "
        f"others: rate ÷ {base}'s / CPU per operation ÷ {base}'s (more and less are "
        f"better). {machines}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--out", default=".", metavar="DIR")
    parser.add_argument("--readme", metavar="README.md")
    args = parser.parse_args()
    found = report.load(args.files)
    if args.readme:
        with open(args.readme) as f:
            text = f.read()
        changed = report.replace_block(text, "results", "/results", readme_table(found))
        if changed == text and "<!-- results -->" not in text:
            raise SystemExit(f"benchmarks: {args.readme} has no <!-- results -->")
        with open(args.readme, "w") as f:
            f.write(changed)
        return
    os.makedirs(args.out, exist_ok=True)
    for group, entries in found.groups().items():
        path = os.path.join(args.out, f"benchmark-{group}.png")
        draw(group, entries, path)
        print(path)


if __name__ == "__main__":
    main()
