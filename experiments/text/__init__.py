"""Language models on text: none of the implemented papers measures them."""
