"""Turns text into the token shards that train_gpt reads: `python3 -m data.prepare --help`.

shard.py writes shards and their sidecars, tokenizers.py maps text to tokens, text.py and tinyshakespeare.py are the
commands. Everything is the standard library, except GPT-2's tokenizer, which is the tiktoken package.
"""
