"""The Prefer header (RFC 7240): how long a caller would like to wait for the end of a job."""

import re

WAIT_LIMIT_S = 60
_WAIT = re.compile(r'wait\s*=\s*"?(\d{1,9})"?', re.IGNORECASE)


def wait_seconds(values: list[str]) -> int:
    """Return the wanted wait in whole seconds, at most ``WAIT_LIMIT_S``; 0 when none is asked for.

    A preference that cannot be read is ignored, as the RFC demands; the first of two counts.
    """
    for preference in ",".join(values).split(","):
        match = _WAIT.fullmatch(preference.partition(";")[0].strip())
        if match:
            return min(int(match.group(1)), WAIT_LIMIT_S)
    return 0
