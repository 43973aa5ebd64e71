"""What people look at: figures, heatmaps of the prompt's text, and reports in one file that works offline."""
