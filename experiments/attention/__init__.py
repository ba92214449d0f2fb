"""What the mechanisms attend to, and how well their polynomials do: figures for their pages."""
