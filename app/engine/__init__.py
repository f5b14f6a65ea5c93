"""The engine: everything that runs under Pyodide in the page's worker.

Its modules import natively wherever they can, so that most of it is tested without a browser. `js` and `pyodide` are
only imported by `gpu/`, `weights/browser.py`, `weights/opfs.py` and `worker.py`.
"""
