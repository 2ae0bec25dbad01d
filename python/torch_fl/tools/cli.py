# SPDX-License-Identifier: Apache-2.0
"""`torch-fl`: the command line of torch_fl.

Exit codes: 0 done, 1 the command failed (one line says why), 2 wrong usage; a suite or benchmark returns its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_fl._text import one_line
from torch_fl.tools import bench, conformance, info

_COMMANDS = (info, conformance, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; `argv` without the program's name, `sys.argv` for None. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="torch-fl", description="One PyTorch device, flagos, for every accelerator.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        command = commands.add_parser(module.NAME, help=module.HELP, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)

    # `torch-fl conformance ops --help` belongs to the suite: what follows its name is passed on as it is.
    passes_on = len(arguments) > 1 and arguments[0] in (conformance.NAME, bench.NAME) and arguments[1][:1] != "-"
    split = 2 if passes_on else len(arguments)
    options = parser.parse_args(arguments[:split])
    try:
        return options.run(options, arguments[split:])
    except (ImportError, OSError, RuntimeError) as error:
        print(f"torch-fl: error: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
