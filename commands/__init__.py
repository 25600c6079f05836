"""The command line: one module for each sub-command, which parses, calls the library and prints."""
