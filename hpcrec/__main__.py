"""``python -m hpcrec``: the same as the command ``hpcrec``."""

from hpcrec.cli import main

if __name__ == "__main__":
    main()
