"""Write the measured figures of the m2 source document as tables in SI units.

Run from the repository root::

    python data/recipes/m2_source.py            # write the tables and the sha256 in their cards
    python data/recipes/m2_source.py --check    # compare with the stored tables, change nothing
"""

import sys

from _recipe import main

# Section 3, table: qkv projection at M = 16384, five randomised runs, median and 95 % half-width.
# N and K are those of qkv in Llama-3.1-8B, whose shapes the source measures. Then the cap sweep of
# the local RTX 5090, whose two ends are all that is published.
CLOCK = """\
sku,op,M,N,K,power_limit,boost_clock,sustained_clock,half_width
A100-80GB-SXM,qkv,16384,6144,4096,,1410e6,1125e6,20.4e6
H200-141GB-SXM,qkv,16384,6144,4096,,1980e6,1455e6,10.2e6
H100-80GB-SXM,qkv,16384,6144,4096,,1980e6,1380e6,8.3e6
L40S-48GB-PCIe,qkv,16384,6144,4096,,2520e6,1425e6,33.3e6
RTX-5090-32GB-PCIe,,,,,575,,2730e6,
RTX-5090-32GB-PCIe,,,,,400,,2452e6,
"""

# Section 6, second error: measured large-M ceilings of the compute branch, by projection.
CEILINGS = """\
op,eta_compute
qkv,0.675
o,0.703
gate_up,0.744
down,0.748
"""

# Section 6, third error: the ramp 0.891 - 1.171 / sqrt(W in MB), and how far one share of 0.75
# misses the time of two projections at M = 1; then the memory-branch errors for M <= 16.
MEMORY = """\
quantity,op,value,units
ramp_limit,,0.891,1
ramp_slope,,1.171,MB^0.5
weight,o,33e6,byte
weight,gate_up,235e6,byte
error_of_constant_share,o,-0.105,1
error_of_constant_share,gate_up,0.103,1
mape_of_constant_share,,0.053,1
mape_of_ramp,,0.028,1
mape_of_ramp_held_out,,0.029,1
"""

TABLES = {"clock_sustained": CLOCK, "eta_ceilings": CEILINGS, "eta_memory": MEMORY}


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda: {name: text.encode() for name, text in TABLES.items()}))
