"""Which page can be asked what: the page's own intent first.

Left out, because the text of the page or BrowserGym's reward makes them impossible: what only colour, shape,
size or position shows; click-link, click-tab-2, click-collapsible-2, multi-layouts, order-food, find-greatest
(the things to click are text without a bid); click-widget (text input and textarea print alike); email and
social-media (nameless icons); odd-or-even (marks are not shown); navigate-tree (files and folders print alike,
a wrong one ends the episode); search-engine (its links change the address, for which BrowserGym gives 0);
click-test-2, click-button-sequence and button-delay (one button covers the other at every fifth seed).
"""

from __future__ import annotations

from webrl.suites.miniwob.experts import choices, clicks, paged, texts
from webrl.suites.miniwob.experts.expert import Expert
from webrl.suites.miniwob.experts.intent import Intent

_INTENTS: dict[str, tuple[Intent, ...]] = {
    "click-button": (clicks.BUTTON,),
    "click-dialog-2": (clicks.DIALOG_BUTTON,),
    "click-tab": (clicks.TAB,),
    "focus-text-2": (clicks.FOCUS,),
    "click-collapsible": (clicks.EXPAND, clicks.EXPAND_ONLY),
    "click-option": (choices.RADIO, choices.RADIO_ONLY),
    "click-checkboxes": (choices.CHECKBOXES, choices.CHECKBOXES_ONLY),
    "choose-list": (choices.DROPDOWN, choices.DROPDOWN_ONLY),
    "enter-text": (texts.TEXT, texts.TEXT_ONLY),
    "enter-password": (texts.PASSWORD, texts.PASSWORD_ONLY),
    "login-user": (texts.LOGIN, texts.LOGIN_FIELDS, texts.USERNAME_ONLY),
    "form-sequence-2": (choices.RADIO_NUMBER, choices.RADIO_POSITION),
    "form-sequence-3": (choices.DROPDOWN_BUTTON, choices.DROPDOWN_BUTTON_ONLY),
    "read-table": (texts.TABLE_VALUE, texts.TABLE_VALUE_ONLY, texts.TEXT),
    "read-table-2": (texts.TABLE_FORM, texts.TABLE_FIELD),
    "text-transform": (texts.SPELLED, texts.SPELLED_PART, texts.TEXT),
    "find-word": (texts.WORD, texts.TEXT),
    "enter-date": (texts.DATE, texts.DATE_ONLY),
    "enter-time": (texts.TIME, texts.TIME_ONLY),
    "phone-book": (paged.CONTACT, paged.NEXT_CONTACT),
    "click-dialog": (clicks.CLOSE_DIALOG,),
    "click-scroll-list": (choices.SCROLL_LIST,),
    "enter-text-dynamic": (texts.TEXT, texts.TEXT_ONLY),
    "login-user-popup": (texts.LOGIN, texts.LOGIN_FIELDS, texts.USERNAME_ONLY),
    "unicode-test": (clicks.BUTTON,),
}

EXPERTS: dict[str, Expert] = {
    f"miniwob.{name}": Expert(f"miniwob.{name}", intents, popup=name == "login-user-popup")
    for name, intents in _INTENTS.items()
}
