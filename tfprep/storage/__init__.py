"""Local files, which are written whole or not at all, and URLs, which are only read."""
