"""The table of faults names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "faults.md"


def test_every_fault_has_its_test() -> None:
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and "| --- |" not in line]
    rows = [row for row in rows if not row.startswith("| Fault |")]
    assert len(rows) >= 50
    for row in rows:
        found = re.search(r"`([\w/]+\.py)::(test_\w+)` \|$", row)
        assert found, row
        assert f"def {found[2]}(" in (TESTS / found[1]).read_text(), row
