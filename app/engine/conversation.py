"""From the option `messages` to the ids that a model reads."""

from dataclasses import replace

from app.engine.errors import ChatTemplateError
from app.engine.loading import Model
from app.engine.options import Options


def with_ids(model: Model, options: Options) -> tuple[Options, bool]:
    """Return options with the ids of a conversation instead of `messages`, and whether early messages were left out.

    Raises ChatTemplateError if the model has no chat template, or its template refuses.
    """
    if options.messages is None:
        return options, False
    if model.chat is None:
        raise ChatTemplateError(
            f"{model.report['model']} has no chat template: it continues texts, and was not taught to answer messages. "
            "Give it a prompt, or choose an instruct model."
        )
    if isinstance(model.chat, ChatTemplateError):
        raise model.chat
    n_ctx = model.runner.n_ctx
    # As for a prompt that is too long: a quarter of the context is given up for the answer.
    room = n_ctx - min(options.max_new_tokens, max(1, n_ctx // 4))
    ids, shortened = model.chat.encode(options.messages, room)
    return replace(options, ids=tuple(ids), messages=None), shortened
