"""The captured graph: checked, simplified, expanded, written down."""
