"""`python -m meshwright`."""

import sys

from meshwright.interpreter import leave_folder

if __name__ == "__main__":
    leave_folder()  # before anything else is imported

from meshwright.cli import main

if __name__ == "__main__":
    sys.exit(main())
