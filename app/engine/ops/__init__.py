"""The operations that models are written over: computed at once, or recorded as a graph."""
