"""The command ``hpcrec``: a file for each of its commands; `main` has the way in. Imports nothing itself."""
