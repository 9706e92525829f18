"""The pages' drawings, each made by a function from the settings' defaults."""
