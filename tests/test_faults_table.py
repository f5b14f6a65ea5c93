"""The tables of faults name tests that exist."""

import re
from itertools import takewhile
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "faults.md"


def test_every_fault_has_its_test() -> None:
    lines = TABLE.read_text().splitlines()
    headers = [number for number, line in enumerate(lines) if line.startswith("| Fault |")]
    rows = [row for header in headers for row in takewhile(lambda line: line.startswith("|"), lines[header + 2 :])]
    assert len(rows) >= 50
    for row in rows:
        found = re.search(r"`([\w/]+\.py)::(test_\w+)` \|$", row)
        assert found, row
        assert f"def {found[2]}(" in (TESTS / found[1]).read_text(), row
