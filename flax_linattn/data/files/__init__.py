"""Files before their meaning: text read line by line, archives and folders of files, arrays."""
