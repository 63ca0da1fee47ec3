"""Errors whose message is all that a user needs to see."""


class UserError(ValueError):
    """A mistake in what the user gave: the message names the place (file, line, key) and says what to do."""


class ChampionMovedError(RuntimeError):
    """The champion is not the one that the candidate was gated against."""
