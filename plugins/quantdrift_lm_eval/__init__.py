"""quantdrift inside lm-eval: `lm_eval --model quantdrift --model_args pretrained=M,scheme=W4-rtn`.

`hooks` is what the start-up hook calls; nothing else is loaded until the model `quantdrift` is asked for.
"""
