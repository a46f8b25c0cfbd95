"""The site of the pages: `scripts/build-site`."""
