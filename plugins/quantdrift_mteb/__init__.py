"""quantdrift inside mteb: `mteb run --model quantdrift:minilm@W4-rtn -t SciFact`.

`hooks` is what the start-up hook calls; nothing else is loaded until a `quantdrift:` model is asked for.
"""
