"""Core memory on the command line: blocks, their history, and Markdown files of them."""
