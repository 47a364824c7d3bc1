"""Makes data sets: converters of tables and logs, what they are made of, and the writer."""
