"""`python -m verydeep` is `verydeep`."""

from verydeep.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
