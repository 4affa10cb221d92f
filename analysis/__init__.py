"""Tables, figures and statistics. Reads run directories only; nothing here imports torch or trains anything."""
