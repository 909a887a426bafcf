"""This machine's memory and graphics cards while Hearth runs: sampled, judged, and told. Knows no model and no request."""
