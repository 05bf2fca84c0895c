"""What every test starts from."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and so would every process that a test starts: interrupts are
# part of what is tested, so they work here whoever started pytest.
signal.signal(signal.SIGINT, signal.default_int_handler)
