"""The command line. Exit status: 0 fine, 1 it failed or the model has faults, 2 wrong usage."""

import argparse
import sys
from collections.abc import Sequence

from app.engine.errors import EngineError
from weights_tool.convert import add_convert
from weights_tool.fetch import add_fetch
from weights_tool.inspection import add_inspect
from weights_tool.publish import add_publish
from weights_tool.quantize import add_quantize
from weights_tool.random_model import add_random
from weights_tool.verify import add_verify

DESCRIPTION = """\
Work on the files of GPT-2 models: config.json, *.safetensors and a tokenizer in one folder, as on the hub.

  python -m weights_tool fetch distilbert/distilgpt2 --out distilgpt2         get a model from the hub
  python -m weights_tool inspect openai-community/gpt2                        see what is in a repository or folder
  python -m weights_tool convert ckpt.pt --out mine --vocab distilgpt2        read other layouts
  python -m weights_tool quantize mine --to f16 --out small --text some.txt   make it smaller, see what it costs
  python -m weights_tool verify small                                         look at every value
  python -m weights_tool publish small --out site --max-file-mb 24            make it ready for a static host
  python -m weights_tool random gpt2 --out /tmp/hub/me/gpt2 --vocab mine      write a GPT-2 with random weights

Each command explains itself with --help.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m weights_tool", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (add_fetch, add_inspect, add_convert, add_quantize, add_verify, add_publish, add_random):
        add(commands)
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
