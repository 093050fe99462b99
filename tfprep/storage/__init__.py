"""Local files and objects at URLs, which are read, and written whole or not at all."""
