"""quantdrift inside lm-eval: `lm_eval --model quantdrift --model_args pretrained=M,scheme=W4-rtn`.

The start-up hook calls `hooks`; nothing else is loaded until the model `quantdrift` is used.
"""
