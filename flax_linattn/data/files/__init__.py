"""Format-independent reading of files: lines of text, archives, folders and arrays."""
