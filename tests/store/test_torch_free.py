from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.samples import run_folder

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "triton", "numba"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
"""

TWO_RUNS = """
from pathlib import Path
from kvbench.cli.main import run
from tests.store.stored import stored_run
out = Path(sys.argv[1]).parent
a, b = (stored_run(out / n, {"output_tokens_per_s": lambda c, n: 100.0 + c + n % 2}) for n in "ab")
"""


@pytest.mark.parametrize(
    "work",
    [
        "from kvbench.cli.main import run; sys.exit(run(['report', sys.argv[1]]))",
        "from kvbench.cli.main import run; sys.exit(run(['manifest', 'show', sys.argv[1]]))",
        "import kvbench; r = kvbench.open_run(sys.argv[1]); print(len(r.cases) + len(r.steps) + len(r.requests))",
        "from kvbench.cli.main import run; sys.exit(run(['verify', '--steps', '50']))",
        TWO_RUNS + "sys.exit(run(['gate', 'judge', str(a), str(b)]))",
        "import kvbench.measure.metrics, kvbench.analysis.pareto, kvbench.analysis.consistency; print()",
    ],
)
def test_m69_a_run_is_read_on_a_machine_without_torch(tmp_path: Path, work: str) -> None:
    """Results folder read where torch cannot be imported."""
    path = run_folder(tmp_path, is_sealed=True)
    command = [sys.executable, "-c", BLOCK + work, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
