"""Makes recordings of runs, and replays them with this build."""
