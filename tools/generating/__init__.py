"""What is made from the tables in the code (``scripts/generate``)."""
