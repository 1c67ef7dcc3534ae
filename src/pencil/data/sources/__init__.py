"""Sources of data, one module each: files, folders, arrays, tables in memory, datasets of other libraries."""
