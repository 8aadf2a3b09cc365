"""Ground floor: taxonomy, text, types, metrics, artifacts, config and errors. Imports nothing above itself."""
