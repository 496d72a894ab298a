"""`python -m trace_doctor`: the command line, where the script is not on the PATH."""

from trace_doctor.cli import main

if __name__ == "__main__":
    main()
