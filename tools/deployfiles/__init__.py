"""Makes the files in deploy/ from the chart."""
