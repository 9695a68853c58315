"""Generated C built and run: on this machine, other processors, emulated boards."""
