"""The parts that screens are made of. Each shows a part of one snapshot, and asks the database for
nothing."""
