"""A store as Parquet files, as of one position vector, for DuckDB, Polars, pandas. Start at `job`."""
