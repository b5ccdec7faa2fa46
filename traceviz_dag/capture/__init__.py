"""Good captures: what to switch on before a job starts, and the plugin that records inside it."""
