"""REST as both its sides know it, without a web framework: names, parameters, documents, events."""
