"""A run as one HTML file that needs nothing else: `page.write_html` is the door.

Data (everything but `draw`, `theme` and `render`) knows nothing of charts' libraries; drawing computes no number.
"""
