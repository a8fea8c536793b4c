"""The mailboxes as every session begins with them: Postman's table, filled with the content of a seed."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from django.contrib.auth.models import User
from postman.models import STATUS_ACCEPTED, Message

from webrl.arena.mail.content import Conversation, Letter, Mail

_READ_AFTER = datetime.timedelta(minutes=5)


def load(content: Mail, users: Mapping[str, User]) -> None:
    """Fill the table, which is there and empty; `users` are by e-mail address."""
    pairs = [(conversation, letter) for conversation in content.conversations for letter in conversation.letters]
    Message.objects.bulk_create(_row(conversation, letter, users) for conversation, letter in pairs)


def _row(conversation: Conversation, letter: Letter, users: Mapping[str, User]) -> Message:
    letters = conversation.letters
    place = letters.index(letter)
    put_away = letter.date + _READ_AFTER if letter.folder == "trash" else None
    return Message(
        pk=letter.pk,
        subject=f"{'Re: ' * (place > 0)}{conversation.subject}",
        body=letter.text,
        sender=users[letter.sender],
        recipient=users[letter.recipient],
        parent_id=letters[place - 1].pk if place else None,
        thread_id=letters[0].pk if len(letters) > 1 else None,
        sent_at=letter.date,
        read_at=letter.date + _READ_AFTER if letter.is_read else None,
        replied_at=letters[place + 1].date if place + 1 < len(letters) else None,
        recipient_archived=letter.folder == "archives",
        recipient_deleted_at=put_away,
        moderation_status=STATUS_ACCEPTED,
        moderation_date=letter.date,
    )
