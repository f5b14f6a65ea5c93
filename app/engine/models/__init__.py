"""Model families: their configs and forward passes."""
