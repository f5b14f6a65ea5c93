"""tabgpt: GPT-2 in a browser tab, written in Python."""

__version__ = "0.1.0"
