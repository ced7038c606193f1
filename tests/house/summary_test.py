"""scripts/test_summary.py: what it counts, and when it must not say that all is well."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "test_summary.py"
PASS = '<testcase name="{}" classname="S" status="run" result="completed"/>'
FAIL = '<testcase name="{}" classname="S" status="run"><failure message="no"/></testcase>'
SKIP = '<testcase name="{}" classname="S" result="skipped"><skipped message="no data"/></testcase>'


class Summary(unittest.TestCase):
    def run_summary(self, files, status=0):
        """(exit status, last line) for a report folder with these files; self.lines has all."""
        with tempfile.TemporaryDirectory() as folder:
            for name, cases in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
            done = subprocess.run(
                [sys.executable, SCRIPT, folder, str(status)],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            self.lines = done.stdout.splitlines()
            return done.returncode, self.lines[-1]

    def test_cases_of_all_runners_are_added_up(self):
        files = {
            "ctest.xml": '<testcase name="a" status="run"/><testcase name="script" status="run"/>',
            "gtest/a_test.xml": PASS.format("x") + PASS.format("y") + SKIP.format("z"),
            "pytest.xml": PASS.format("e"),
        }
        self.assertEqual(self.run_summary(files), (0, "4 passed, 0 failed, 1 skipped"))

    def test_a_failed_case_is_counted_once(self):
        files = {
            "ctest.xml": '<testcase name="a" status="fail"><failure message=""/></testcase>',
            "gtest/a_test.xml": PASS.format("x") + FAIL.format("y"),
        }
        self.assertEqual(self.run_summary(files, 8), (1, "1 passed, 1 failed"))

    def test_a_crash_is_a_failure_though_no_case_says_so(self):
        crashed = '<testcase name="a" status="fail"><failure message=""/></testcase>'
        self.assertEqual(self.run_summary({"ctest.xml": crashed}, 8), (1, "0 passed, 1 failed"))
        files = {"ctest.xml": crashed, "gtest/a_test.xml": PASS.format("x")}
        self.assertEqual(self.run_summary(files, 8), (1, "1 passed, 1 failed"))

    def test_a_program_that_could_not_run_is_a_failure(self):
        gone = '<testcase name="a" status="notrun"><skipped message="{}"/></testcase>'
        files = {"ctest.xml": gone.format("Unable to find executable")}
        self.assertEqual(self.run_summary(files, 8), (1, "0 passed, 1 failed"))

    def test_what_tests_ran_with_is_named(self):
        said = '<properties><property name="with" value="a server 1.2"/></properties>'
        case = f'<testcase name="x" status="run" result="completed">{said}</testcase>'
        files = {"gtest/a_test.xml": case + PASS.format("y"), "pytest.xml": case}
        self.assertEqual(self.run_summary(files), (0, "3 passed, 0 failed"))
        self.assertIn("with a server 1.2: 2 tests", self.lines)

    def test_nothing_run_is_not_success(self):
        self.assertEqual(self.run_summary({}), (1, "0 passed, 0 failed"))
        files = {"gtest/a_test.xml": SKIP.format("x")}
        self.assertEqual(self.run_summary(files), (1, "0 passed, 0 failed, 1 skipped"))

    def test_the_status_of_the_runners_counts(self):
        self.assertEqual(
            self.run_summary({"pytest.xml": PASS.format("x")}, 3), (1, "1 passed, 0 failed")
        )


if __name__ == "__main__":
    unittest.main()
