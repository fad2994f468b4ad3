"""AdaRound, built in: a quantizer that takes longer than all the others together."""

from quantdrift.kinds.quantizer import Quantizer

QUANTIZER = Quantizer(
    title="AdaRound",
    make="quantdrift.builtin.adaround.work:from_scheme",
    calibrated=True,
    in_repair=False,
    place=50,
    operations=lambda rows, columns: 5e5 * rows * columns,  # 400 steps
)
