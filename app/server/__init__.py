"""The file server and the static site. CPython only."""
