"""The one kind of error that is the user's to mend."""


class UserError(ValueError):
    """A mistake in what the user gave: the message names the place (file, line, key) and says what to do."""
