"""Published systems as positions on the axes of the configuration: recipes only, one file a system."""
