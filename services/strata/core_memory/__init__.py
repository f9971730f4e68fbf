"""The core memory room: labelled blocks of text that the model always sees, with their history."""
