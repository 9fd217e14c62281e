"""One file a group of routes; each exports `router`."""
