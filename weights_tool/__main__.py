"""The command line. Exit status: 0 fine, 1 it failed or the model has faults, 2 wrong usage."""

import argparse
import sys
from collections.abc import Sequence

from app.engine.errors import EngineError
from weights_tool.inspection import add_inspect
from weights_tool.random_model import add_random

DESCRIPTION = """\
Work on the files of GPT-2 models: config.json, *.safetensors and a tokenizer in one folder, as on the hub.

  python -m weights_tool random gpt2 --out /tmp/hub/me/gpt2 --vocab FOLDER   write a GPT-2 with random weights
  python -m weights_tool inspect /tmp/hub/me/gpt2                            see what is in a folder, and what is wrong
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m weights_tool", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_random(commands)
    add_inspect(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except (EngineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped.", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
