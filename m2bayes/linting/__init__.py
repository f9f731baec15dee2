"""What is wrong with measurement files and datasheets."""
