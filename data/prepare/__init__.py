"""Turns text into the token shards that train_gpt reads: `python3 -m data.prepare --help`, and README.md here.

pipeline.py and chunks.py are the way from inputs to shards: readers.py reads documents, rules.py cleans and filters
them, tokenizers.py maps them to tokens, duplicates.py finds what is there twice, shard.py (the standard library alone)
writes shards and their sidecars, report.py says what was done. The other files are commands of their own.
"""
