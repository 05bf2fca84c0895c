"""What every test starts from."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# A shell starts background jobs with SIGINT ignored, and so would every process that a test starts: interrupts are
# part of what is tested, so they work here whoever started pytest.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a CUDA device Triton's kernels run in its interpreter. Triton reads this when it is imported, so it is set
# before any test is; and the device is looked for as a file, because the books' tests run without torch.
if not any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
