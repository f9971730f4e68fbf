"""Converts the bytes of files to pages of text; formats with converters in a child process."""
