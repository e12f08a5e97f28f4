"""Plain letters in place of the forms that fonts have for them."""

from __future__ import annotations

import re
import unicodedata

_FORMS = re.compile("[\ufb00-\ufb06\ufb50-\ufdff\ufe70-\ufefc]")


def plain_letters(text: str) -> str:
    """Replace Latin ligatures, as in oﬃce, and presentation forms of Arabic by their letters.

    Other characters stay, such as superscripts and fractions. A form of a vowel sign alone is
    the sign, without the blank that Unicode decomposes it to.
    """
    if text.isascii():
        return text
    return _FORMS.sub(lambda form: unicodedata.normalize("NFKC", form[0]).lstrip(" "), text)
