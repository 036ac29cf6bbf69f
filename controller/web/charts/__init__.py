"""Charts as SVG and the pages that hold them: functions of their arguments, the same text each time."""
