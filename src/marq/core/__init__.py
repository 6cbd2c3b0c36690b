"""Every decision of marq, as pure functions and state machines: no I/O, no clock."""
