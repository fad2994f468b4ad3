"""`python -m quantdrift_lm_eval ...`, for launchers that start modules: accelerate, torchrun."""

from quantdrift_lm_eval.cli import main

if __name__ == "__main__":
    main()
