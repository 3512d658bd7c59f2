"""Compares what a conformance suite reported with what is known to fail.

    python tests/conformance_check.py --known tests/known/cases.txt FILE.json

FILE.json is what the suites write with --json: of the tests of CPython and
uvloop, or of the collection of reported faults.  Of several files, a later one
holds what some of the tests did when they were run again.

A line of the list of known failures is

    name of the test [3.11] [3.12]  # reason

where the versions may be left out if it fails on every Python.  A failure that
is not listed is an error; a listed test that passes, or that there is not,
gets a warning.  The last line of output is `N passed, N failed, ...`.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import sys

PASSED = {"passed", "ok"}
FAILED = {
    "failed",
    "errored",
    "timed out",
    "crashed",
    "FAIL",
    "TIMEOUT",
    "CRASH",
}

_LINE = re.compile(
    r"(?P<name>\S.*?)(?P<versions>(?:\s+\[3\.\d+\])*)\s+#\s*(?P<reason>\S.*)"
)


@dataclasses.dataclass(frozen=True)
class Result:
    outcome: str
    reason: str = ""
    attempts: int = 1


@dataclasses.dataclass(frozen=True)
class Known:
    reason: str
    versions: frozenset[str]  # such as "3.11"; empty: all

    def applies_to(self, version: str) -> bool:
        return not self.versions or version in self.versions


class ListError(Exception):
    """The list of known failures is not in order."""


def read_results(text: str) -> dict[str, Result]:
    """The results by test, of either kind of file."""
    table = json.loads(text)
    if "results" in table:
        return {
            entry["test"]: Result(
                entry["outcome"], entry["reason"], entry["attempts"]
            )
            for entry in table["results"]
            if entry["outcome"] != "excluded"
        }
    return {
        name: Result(entry["verdict"], entry["detail"])
        for name, entry in table.items()
    }


def read_known(text: str) -> dict[str, Known]:
    known: dict[str, Known] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ListError(
                f"line {number}: expected 'name  # reason': {line}"
            )
        if match["name"] in known:
            raise ListError(f"line {number}: listed twice: {match['name']}")
        versions = frozenset(re.findall(r"3\.\d+", match["versions"]))
        known[match["name"]] = Known(match["reason"], versions)
    return known


@dataclasses.dataclass
class Comparison:
    passed: int
    skipped: int
    known: list[str]
    unlisted: dict[str, Result]
    warnings: list[str]


def compare(
    runs: list[dict[str, Result]], known: dict[str, Known], version: str
) -> Comparison:
    listed = {
        name for name, entry in known.items() if entry.applies_to(version)
    }
    last = {name: result for run in runs for name, result in run.items()}
    passed = {
        name for name, result in last.items() if result.outcome in PASSED
    }
    failed = {
        name for name, result in last.items() if result.outcome in FAILED
    }
    warnings = [
        f"{name} is listed as failing, and passes"
        for name in sorted(listed & passed)
    ]
    warnings += [
        f"{name} is listed as failing, and there is no such test"
        for name in sorted(listed - set(last))
    ]
    unstable = {
        name
        for run in runs
        for name, result in run.items()
        if result.attempts > 1 or result.outcome in FAILED
    }
    warnings += [
        f"{name} passed only when it was run again"
        for name in sorted(unstable & passed - listed)
    ]
    return Comparison(
        passed=len(passed),
        skipped=len(last) - len(passed) - len(failed),
        known=sorted(failed & listed),
        unlisted={name: last[name] for name in sorted(failed - listed)},
        warnings=warnings,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--known", type=pathlib.Path, required=True, metavar="FILE"
    )
    parser.add_argument(
        "results", type=pathlib.Path, nargs="+", metavar="RESULTS.json"
    )
    parser.add_argument(
        "--python",
        default=f"{sys.version_info[0]}.{sys.version_info[1]}",
        metavar="3.N",
        help="the Python that ran the suite (default: the one that runs this)",
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="only print the names of the unlisted failures",
    )
    options = parser.parse_args(arguments)
    try:
        known = read_known(options.known.read_text())
    except ListError as error:
        print(f"{options.known}: {error}", file=sys.stderr)
        return 1
    runs = [read_results(path.read_text()) for path in options.results]
    found = compare(runs, known, options.python)
    if options.names:
        for name in found.unlisted:
            print(name)
        return 0
    for text in found.warnings:
        print(f"warning: {options.known}: {text}")
    if found.unlisted:
        print(f"\nNot listed in {options.known}:")
    for name, result in found.unlisted.items():
        print(f"{name}  # {result.outcome}: {' '.join(result.reason.split())}")
    if found.passed == 0:
        print("nothing passed: the suite did not run")
        return 1
    print(
        f"{found.passed} passed, {len(found.unlisted)} failed,"
        f" {len(found.known)} known failures, {found.skipped} skipped"
    )
    return 1 if found.unlisted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
