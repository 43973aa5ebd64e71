"""What attnprobe raises when the input or the model cannot be measured."""


class InputError(ValueError):
    """The user's input or arguments are wrong; the message names the thing and the remedy (exit status 2)."""


class CaptureError(RuntimeError):
    """A model, or one of its layers, cannot be captured; the message names it and says what to do."""


class RunFileError(InputError):
    """A run file is damaged, of another format, or of a newer schema than this version reads."""
