"""Command that answers a question as an HTML page: report."""

from __future__ import annotations

import argparse
import shlex

from m2bayes import output
from m2bayes._files import write_whole
from m2bayes.asking import ask
from m2bayes.commands._shared import print_json, progress
from m2bayes.database import Database
from m2bayes.errors import DataError


def report(args: argparse.Namespace) -> int:
    """Write the decision report of a question."""
    if not args.out.lower().endswith((".html", ".htm")):
        raise DataError(f"--out {args.out}: the report is a page; name a .html file")
    target = output.file_to_write(args.out)
    question = ask(args)
    from m2bayes.reporting.report import report as page

    with progress(args, len(question.workloads)) as advance:
        text = page(
            Database(args.database),
            question,
            skus=args.sku,
            command=shlex.join(["m2bayes", *args.argv]),
            advance=advance,
        )
    content = text.encode()
    write_whole(target, content)
    if args.json:
        print_json({"out": args.out, "bytes": len(content)})
    else:
        print(f"{args.out}: {len(content) / 1e3:,.0f} kB")
    return 0
