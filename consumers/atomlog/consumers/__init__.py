"""Everything with a main: followers, the command line, rebuilds."""
