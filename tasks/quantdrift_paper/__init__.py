"""The parts that only the paper needs: its tables and figures, capture, the law, the contenders, the models it trains.

It reads study folders and run folders, and lies outside the wheel: python -m quantdrift_paper --help, from a checkout.
"""
