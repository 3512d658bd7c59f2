"""conformance_check.py: nothing that fails passes it unlisted."""

import json

import conformance_check
import pytest

KNOWN = """\
# a comment
test_a.Test.test_fails  # asyncio fails it too
test_a.(exit of the process) [3.11] [3.12]  # closed later there
"""


def suite(**outcomes):
    return json.dumps(
        {
            "suite": "a",
            "results": [
                {
                    "test": name.replace("__", ".Test."),
                    "outcome": outcome,
                    "reason": "why",
                    "attempts": 1,
                }
                for name, outcome in outcomes.items()
            ],
        }
    )


def cases(**verdicts):
    return json.dumps(
        {name: {"verdict": v, "detail": "why"} for name, v in verdicts.items()}
    )


@pytest.fixture
def check(tmp_path, capsys):
    """Runs the program: its exit status and the lines that it printed."""

    def run(*results, known=KNOWN, options=()):
        list_file = tmp_path / "known.txt"
        list_file.write_text(known)
        paths = []
        for number, text in enumerate(results):
            paths.append(tmp_path / f"{number}.json")
            paths[-1].write_text(text)
        status = conformance_check.main(
            ["--known", str(list_file), *options, *map(str, paths)]
        )
        output = capsys.readouterr()
        return status, (output.out + output.err).splitlines()

    return run


def test_known_names_and_versions():
    known = conformance_check.read_known(KNOWN)
    assert list(known) == [
        "test_a.Test.test_fails",
        "test_a.(exit of the process)",
    ]
    first, second = known.values()
    assert first.reason == "asyncio fails it too"
    assert first.applies_to("3.11") and first.applies_to("3.13")
    assert second.applies_to("3.12") and not second.applies_to("3.13")


@pytest.mark.parametrize(
    "text",
    ["test_a", "test_a [3.11]", "test_a  #", "test_a # x\ntest_a # y"],
)
def test_a_list_out_of_order_is_an_error(check, text):
    status, lines = check(suite(a__b="passed"), known=text)
    assert status == 1
    assert "line" in lines[-1]


def test_listed_failures_are_no_errors(check):
    results = suite(
        test_a__test_fails="errored", a__b="passed", a__c="skipped"
    )
    status, lines = check(results, options=["--python", "3.13"])
    assert status == 0
    assert lines == ["1 passed, 0 failed, 1 known failures, 1 skipped"]


@pytest.mark.parametrize("outcome", sorted(conformance_check.FAILED))
def test_unlisted_failures_are_errors(check, outcome):
    status, lines = check(suite(a__b="passed", a__c=outcome), known="")
    assert status == 1
    assert f"a.Test.c  # {outcome}: why" in lines
    assert lines[-1].startswith("1 passed, 1 failed")


def test_a_version_limits_an_entry(check):
    known = "a.Test.c [3.11]  # gone in 3.12"
    results = suite(a__b="passed", a__c="failed")
    assert check(results, known=known, options=["--python", "3.11"])[0] == 0
    assert check(results, known=known, options=["--python", "3.12"])[0] == 1


def test_listed_tests_that_pass_are_reported(check):
    status, lines = check(
        suite(test_a__test_fails="passed"), options=["--python", "3.11"]
    )
    assert status == 0
    assert [line for line in lines if line.startswith("warning: ")] == lines[
        :2
    ]
    assert (
        "test_a.Test.test_fails is listed as failing, and passes" in lines[0]
    )
    assert "there is no such test" in lines[1]


def test_excluded_tests_do_not_count(check):
    status, lines = check(suite(a__b="passed", a__c="excluded"), known="")
    assert status == 0
    assert lines == ["1 passed, 0 failed, 0 known failures, 0 skipped"]


def test_a_suite_that_did_not_run_is_an_error(check):
    assert check(suite(a__b="skipped"), known="")[0] == 1


def test_the_second_run_counts(check):
    first = cases(case_01_x="ok", case_02_y="FAIL", case_03_z="TIMEOUT")
    second = cases(case_02_y="ok", case_03_z="FAIL")
    status, lines = check(first, second, known="")
    assert status == 1
    assert "case_02_y passed only when it was run again" in lines[0]
    assert lines[-1].startswith("2 passed, 1 failed")


def test_names_for_a_second_run(check):
    results = cases(case_01_x="ok", case_02_y="FAIL", case_03_z="CRASH")
    status, lines = check(
        results, known="case_03_z  # known", options=["--names"]
    )
    assert status == 0
    assert lines == ["case_02_y"]
