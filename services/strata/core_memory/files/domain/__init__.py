"""The rules of folders and files, free of transport, database and generated code."""
