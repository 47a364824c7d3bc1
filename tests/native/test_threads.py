"""The native kernels on several threads under ThreadSanitizer: no race, and the same bits as on one."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_threads_do_not_race():
    done = subprocess.run(
        ["tools/sanitize.sh", "thread", "2"], cwd=ROOT, capture_output=True, text=True, timeout=1500
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every kernel: the same bits on 1 to 7 threads, 2 rounds" in done.stdout


def test_an_unknown_sanitizer_is_refused(tmp_path):
    done = subprocess.run(
        ["cmake", "-S", ROOT / "native", "-B", tmp_path, "-G", "Ninja", "-DHPCREC_SANITIZE=memory",
         f"-DPython_EXECUTABLE={sys.executable}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert "HPCREC_SANITIZE is memory. Allowed: address, thread, or nothing." in " ".join(done.stderr.split())
