#!/usr/bin/env python3
"""Sums the results of one test run and ends with the line 'N passed, M failed[, K skipped]'.

usage: test_summary.py REPORT_DIR STATUS

REPORT_DIR holds ctest.xml (JUnit, one entry a program), gtest/*.xml (one file a GoogleTest program
NAME_test, registered with ctest as NAME) and pytest.xml (JUnit). A program that failed without a
failed case in its own report (a crash, a time-out, a sanitizer's finding) counts as one failure.
What tests name as their property "with", a server that they had started, say, is printed.
STATUS is the exit status of the runners. Exits non-zero if anything failed or nothing ran.
"""

import pathlib
import sys
import xml.etree.ElementTree as ET


def outcome(case):
    """'passed', 'failed' or 'skipped' for a <testcase> of GoogleTest, pytest or ctest."""
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if skipped is not None and skipped.get("message") == "Unable to find executable":
        return "failed"  # ctest's word for a program that was not built.
    if skipped is not None or case.get("result") in ("skipped", "suppressed"):
        return "skipped"
    if case.get("status") in ("fail", "notrun", "disabled"):
        return "skipped" if case.get("status") == "disabled" else "failed"
    return "passed"


def cases(path):
    try:
        return list(ET.parse(path).getroot().iter("testcase"))
    except ET.ParseError:
        return []  # Cut short by a crash: the program's ctest entry says that it failed.


def main():
    report, status = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    count = {"passed": 0, "failed": 0, "skipped": 0}
    failures, skips = [], []
    programs = {}  # what tests ran with: how many of them

    def add(result, name, case=None):
        count[result] += 1
        for each in case.iter("property") if case is not None else []:
            if each.get("name") == "with":
                programs[each.get("value")] = programs.get(each.get("value"), 0) + 1
        if result == "failed":
            failures.append(name)
        if result == "skipped":
            node = case.find("skipped") if case is not None else None
            reason = node.get("message") or "" if node is not None else ""
            skips.append((name, " ".join(reason.split())))

    by_program = {}
    for path in sorted((report / "gtest").glob("*.xml")):
        results = []
        for case in cases(path):
            name = f"{case.get('classname')}.{case.get('name')}"
            results.append(outcome(case))
            add(results[-1], name, case)
        by_program[path.stem] = results

    ctest = report / "ctest.xml"
    for case in cases(ctest) if ctest.exists() else []:
        name = case.get("name")
        own = by_program.get(f"{name}_test")
        result = outcome(case)
        if own is None or (not own and result == "failed"):
            add(result, name, case)
        elif result == "failed" and "failed" not in own:
            add("failed", f"{name} (the program failed outside its test cases)")

    pytest = report / "pytest.xml"
    for case in cases(pytest) if pytest.exists() else []:
        add(outcome(case), f"{case.get('classname')}.{case.get('name')}", case)

    for program, tests in sorted(programs.items()):
        print(f"with {program}: {tests} tests")
    by_reason = {}
    for name, reason in skips:
        by_reason.setdefault(reason or "no reason given", []).append(name)
    for reason, names in by_reason.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"skipped: {reason} ({names[0]}{more})")
    for name in failures:
        print(f"FAILED: {name}")
    ran = count["passed"] + count["failed"]
    if ran == 0:
        print("No test ran.")
    elif status != 0 and count["failed"] == 0:
        print(f"A test runner ended with status {status} though no test case failed.")
    line = f"{count['passed']} passed, {count['failed']} failed"
    if count["skipped"]:
        line += f", {count['skipped']} skipped"
    print(line, flush=True)
    return 1 if count["failed"] or status != 0 or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
