"""`tfprep demo`: data that it makes itself, a recipe, a contact sheet, and a model that learns from the built dataset."""
