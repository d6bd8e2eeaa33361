"""Tool kind `workbook`."""
