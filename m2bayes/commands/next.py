"""Command that says what to measure next."""

from __future__ import annotations

import argparse
import csv
import sys

from m2bayes.asking import ask
from m2bayes.commands._shared import figure_file, print_json, progress, say, workers
from m2bayes.database import Database
from m2bayes.errors import WorkloadError
from m2bayes.information.table import advice, table
from m2bayes.information.worth import worth
from m2bayes.options import number

COLUMNS = (
    "measurement",
    "evsi",
    "evsi_mcse",
    "p_change",
    "resolved",
    "gpu_hours",
    "net",
    "command",
)
MOST = 1000  # runs of a measurement, and measurements taken together


def next_(args: argparse.Namespace) -> int:
    """Value measurements that could settle the choice."""
    for name in ("repeats", "count"):
        if not 1 <= getattr(args, name) <= MOST:
            raise WorkloadError(f"--{name} {getattr(args, name)}: give 1 to {MOST}")
    if args.spend is not None and not args.spend > 0:
        raise WorkloadError(f"--spend {args.spend:g}: give the USD of a year, above 0")
    if not 0 <= args.worth < 1:
        raise WorkloadError(f"--worth {args.worth:g}: give a share from 0 to below 1")
    question, prices, target = ask(args), _prices(args), figure_file(args)
    with workers(args) as each, progress(args, args.count, unit="measurements", many=1) as advance:
        found = worth(
            question,
            repeats=args.repeats,
            count=args.count,
            spend=args.spend,
            prices=prices,
            least=args.worth,
            advance=advance,
            each=each,
        )
    if target:
        from m2bayes.plot import asked, save

        save(asked.of_values(found), target)
    if args.json:
        print_json(found)
    elif args.csv:
        writer: csv.DictWriter[str] = csv.DictWriter(
            sys.stdout, COLUMNS, extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(found["candidates"])
    else:
        print(table(found))
        if not args.quiet:
            for text in advice(found):
                say(text)
    return 0


def _prices(args: argparse.Namespace) -> dict[str, float]:
    """Price of an hour of each SKU's GPU [USD/h]."""
    database, prices = Database(args.database).with_cards(args.sku), dict[str, float]()
    for text in args.gpu_hour:
        name, equals, usd = text.partition("=")
        try:
            price = number(usd)
        except argparse.ArgumentTypeError:
            price = -1.0
        if not equals or price < 0:
            raise WorkloadError(f"--gpu-hour {text}: give SKU=USD, of one GPU and hour")
        prices[str(database.sku_card(name)[0]["name"])] = price
    return prices
