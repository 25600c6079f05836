"""Tables: a DataFrame to a file and back, each file whole or not at all."""
