"""`python -m antiphase`: the command line."""

from antiphase._cli import main

if __name__ == "__main__":
    main()
