"""`python -m marq.cli` is the `marq` command, for where its script is not on PATH."""

from marq.cli import main

main()
