"""`python -P -m cadenza.cli`."""

from cadenza.cli.main import main

if __name__ == "__main__":
    main()
