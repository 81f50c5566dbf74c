"""`python -m shuhari`: the command line."""

from shuhari.cli import main

if __name__ == "__main__":
    main()
