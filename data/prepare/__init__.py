"""Turns text into the token shards that train_gpt reads: `python3 -m data.prepare --help`, and README.md here.

pipeline.py and chunks.py turn inputs into shards: readers.py reads documents, rules.py cleans and filters them,
tokenizers.py maps them to tokens, duplicates.py finds repeated documents, shard.py (standard library only) writes
shards and their sidecars, and report.py describes the result. The other files are commands of their own.
"""
