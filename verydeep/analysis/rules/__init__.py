"""The rules by theme: each a function from a `Reading` to its findings, none, one or a few. `rule.RULES` names them."""
