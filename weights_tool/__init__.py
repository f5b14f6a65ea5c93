"""python -m weights_tool: work on model files outside the page."""
