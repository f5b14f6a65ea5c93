"""The Transport for tests outside a browser: the tool's own."""

from weights_tool.remote import HttpTransport

__all__ = ["HttpTransport"]
