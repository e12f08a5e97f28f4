"""One module for each search engine: schema, upload, and example code that searches."""
