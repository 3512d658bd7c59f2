"""JSON of the benchmarks, pytest-benchmark's or ours, as tables in Markdown.

    python -m benchmarks.report FILE.json...              to standard output
    python -m benchmarks.report FILE.json... --bars       the bars only
    python -m benchmarks.report FILE.json... --into benchmarks/RESULTS.md

With --into, the tables replace what stands in that file between
`<!-- table: GROUP -->` and `<!-- /table -->`, for the groups that are in the
JSON, and the bars what stands between `<!-- bars -->` and `<!-- /bars -->`: so
give it all files at once.  Of a workload in two files the last one counts.
"""

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import bars, harness, loops

Entry = dict[str, Any]


@dataclass
class Report:
    entries: dict[str, Entry]
    """by workload"""
    environments: list[dict[str, Any]]

    def groups(self) -> dict[str, list[Entry]]:
        found: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            found.setdefault(entry["group"], []).append(entry)
        return found


# -- reading -------------------------------------------------------------------


def load(paths: Iterable[str]) -> Report:
    report = Report({}, [])
    for path in paths:
        with open(path) as f:
            document = json.load(f)
        if document.get("format") == harness.FORMAT:
            entries = document["results"]
            environment = document["environment"] | {"command": document["command"]}
        elif "benchmarks" in document:
            entries = pytest_entries(document["benchmarks"])
            environment = pytest_environment(document)
        else:
            raise SystemExit(f"benchmarks: {path} is not from these benchmarks")
        report.entries.update({entry["workload"]: entry for entry in entries})
        report.environments.append(environment)
    return report


def pytest_entries(benchmarks: Sequence[Mapping[str, Any]]) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for one in benchmarks:
        info = one["extra_info"]
        if "workload" not in info:
            continue
        entry = entries.setdefault(
            info["workload"],
            {
                "workload": info["workload"],
                "group": info["suite"],
                "metrics": info["metrics"],
                "loops": {},
            },
        )
        entry["loops"][info["loop"]] = info["rounds"]
    return list(entries.values())


def pytest_environment(document: Mapping[str, Any]) -> dict[str, Any]:
    machine = document["machine_info"]
    infos = [b["extra_info"] for b in document["benchmarks"]]
    return {
        "python": machine["python_version"],
        "kernel": machine["release"],
        "cpu": machine.get("cpu", {}).get("brand_raw", ""),
        "cpus": machine.get("cpu", {}).get("count", 0),
        "versions": {i["loop"]: i.get("version", "") for i in infos if "loop" in i},
        "time": document["datetime"][:16].replace("T", " "),
    }


# -- tables --------------------------------------------------------------------


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|" + "---|" * len(header))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def describe(environments: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each machine and Python that was measured on."""
    found: dict[str, tuple[set[str], dict[str, str]]] = {}
    for one in environments:
        cpu = f" ({one['cpu']})" if one["cpu"] else ""
        machine = (
            f"CPython {one['python']}, Linux {one['kernel']}, {one['cpus']} CPUs{cpu}"
        )
        days, versions = found.setdefault(machine, (set(), {}))
        days.add(one["time"].split()[0])
        versions.update({loops.split(n)[0]: v for n, v in one["versions"].items() if v})
    return [
        "; ".join(
            part
            for part in (
                machine,
                ", ".join(f"{name} {version}" for name, version in versions.items()),
                " to ".join(sorted({min(days), max(days)})),
            )
            if part
        )
        for machine, (days, versions) in found.items()
    ]


def parts(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Those with the same metrics together."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        keys = tuple(metric["key"] for metric in entry["metrics"])
        found.setdefault(keys, []).append(entry)
    return list(found.values())


def full_table(entries: Sequence[Entry]) -> str:
    """A row for each workload and loop, each metric with its ratio."""
    return "\n\n".join(map(part_table, parts(entries)))


def part_table(entries: Sequence[Entry]) -> str:
    metrics = [harness.Metric(**m) for m in entries[0]["metrics"]]
    base = harness.base_of(entries[0]["loops"])
    header = ["workload", "loop"]
    for metric in metrics:
        header += [metric.label] + ([f"÷ {base}"] if metric.compare else [])
    rows = []
    for entry in entries:
        results = entry["loops"]
        for name in results:
            row, dirty = [entry["workload"], name], False
            for metric in metrics:
                figure = harness.figure(results, name, metric.key, base)
                if figure is None:
                    row += ["-"] * (1 + metric.compare)
                    continue
                dirty = dirty or figure.dirty
                row.append(metric.text(figure.median))
                row += [f"{figure.ratio:.2f}"] if metric.compare else []
            errors = harness.count_errors(results[name])
            row[1] += (" ~" if dirty else "") + (
                f" ({errors} errors)" if errors else ""
            )
            rows.append(row)
    return markdown(header, rows)


def compact_table(entries: Sequence[Entry], keys: tuple[str, str]) -> str:
    """A row for each workload, a column for each loop: two ratios to the base,
    for which the figures themselves stand there."""
    names = list(dict.fromkeys(n for entry in entries for n in entry["loops"]))
    base = harness.base_of(names)
    names = [base] + [n for n in names if n != base]
    rows = []
    for entry in entries:
        metrics = {m["key"]: harness.Metric(**m) for m in entry["metrics"]}
        row = [entry["workload"]]
        for name in names:
            cells = []
            for key in keys:
                figure = None
                if name in entry["loops"] and key in metrics:
                    figure = harness.figure(entry["loops"], name, key, base)
                if figure is None:
                    cells.append("-")
                elif name == base:
                    unit = metrics[key].label.removeprefix("CPU ")
                    unit = unit if unit.startswith("µ") else "/s"
                    gap = "" if unit == "/s" else " "
                    cells.append(metrics[key].text(figure.median) + gap + unit)
                else:
                    cells.append(f"{figure.ratio:.2f}")
            joint = ", " if name == base else " / "
            row.append("-" if set(cells) == {"-"} else joint.join(cells))
        rows.append(row)
    return markdown(["workload", *names], rows)


def bars_table(report: Report) -> str:
    rows = []
    for wanted in bars.BARS:
        entry = report.entries.get(wanted.workload)
        results = entry["loops"] if entry else {}
        for bar in bars.expand(wanted, results):
            found = bars.reached(bar, results)
            must = f"{bar.sign} {bar.limit:g}" + (
                f" × {bar.against}" if bar.against else ""
            )
            # Enough digits to see on which side of the bar it is.
            measured = "-" if found is None else f"{found[0]:,.3f}"
            verdict = "-" if found is None else "yes" if found[1] else "**no**"
            rows.append([bar.workload, bar.key, must, measured, verdict])
    header = ["workload", "figure", "must be", "measured", "reached"]
    return markdown(header, rows)


# -- into files ----------------------------------------------------------------


def replace_block(text: str, name: str, end: str, content: str) -> str:
    """`content` between the comments `name` and `end`, if they are there."""
    pattern = re.compile(
        rf"(<!-- {re.escape(name)} -->\n).*?(<!-- {re.escape(end)} -->)", re.S
    )
    return pattern.sub(lambda m: f"{m[1]}{content}\n{m[2]}", text)


def write_into(path: str, report: Report) -> None:
    with open(path) as f:
        text = f.read()
    for group, entries in report.groups().items():
        text = replace_block(text, f"table: {group}", "/table", full_table(entries))
    text = replace_block(text, "bars", "/bars", bars_table(report))
    machines = "\n".join(f"- {line}" for line in describe(report.environments))
    text = replace_block(text, "environment", "/environment", machines)
    with open(path, "w") as f:
        f.write(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    parser.add_argument("--bars", action="store_true")
    parser.add_argument("--into", metavar="FILE.md")
    args = parser.parse_args()
    report = load(args.files)
    if args.into:
        write_into(args.into, report)
        return
    if args.bars:
        print(bars_table(report))
        return
    for group, entries in report.groups().items():
        print(f"### {group}\n\n{full_table(entries)}\n")


if __name__ == "__main__":
    main()
