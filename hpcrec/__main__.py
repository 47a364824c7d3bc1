"""``python -m hpcrec``: the same as the command ``hpcrec``."""

from hpcrec.cli.main import main

if __name__ == "__main__":
    main()
