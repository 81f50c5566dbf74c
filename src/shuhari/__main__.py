"""`python -m shuhari`: the command line."""

import os
import sys

if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
        del sys.path[0]  # `-m` put the current folder there: what is in it is run where a recipe names it alone

    from shuhari.desk.cli import main

    main()
