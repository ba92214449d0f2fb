"""What mechanisms are made of: the monoid engine, scans, blocks, caches, and their choices."""
