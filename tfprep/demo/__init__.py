"""`tfprep demo`: drawn data, a recipe, a contact sheet, and a model that is trained on the built dataset."""
