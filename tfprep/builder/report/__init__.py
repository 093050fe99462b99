"""The report of a build: `report.html`."""
