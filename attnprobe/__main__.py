"""``python -m attnprobe``: the command line."""

from attnprobe.cli import main

if __name__ == "__main__":
    main()
