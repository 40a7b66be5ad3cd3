"""SQLite: migrations, the one writer, transactions, queries, artifacts, the change feed."""
