"""quantdrift inside mteb: `mteb run --model quantdrift:minilm@W4-rtn -t SciFact`.

The start-up hook calls `hooks`; nothing else is loaded until a `quantdrift:` model is used.
"""
