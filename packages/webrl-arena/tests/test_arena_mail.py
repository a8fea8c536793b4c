"""The arena's mail: real Postman pages beside the shop, on the same accounts and in the same sessions."""

import html

import pytest
from arena_server import Visitor

from webrl_arena.world.client import Arena
from webrl_arena.world.content import STAFF_EMAIL, catalogue
from webrl_arena.world.mail import mail
from webrl_site.checks import first_value

MAIL, CUSTOMERS = mail(), {customer.email: customer for customer in catalogue().customers}


@pytest.mark.arena
def test_folders_and_conversations_show_what_the_content_says(arena: Arena) -> None:
    found = next(each for each in MAIL.conversations if len(each.letters) == 4)
    login, other = found.letters[0].recipient, found.letters[0].sender
    with Visitor(arena, f"customer:{login}") as visitor:
        page = html.unescape(visitor.see(found.path))
        assert all(letter.text in page for letter in found.letters)
        assert CUSTOMERS[other].name in page
        for folder, path in (("inbox", "/mail/"), ("archives", "/mail/archives/"), ("trash", "/mail/trash/")):
            shown = html.unescape(visitor.see(path))
            for each in MAIL.conversations:
                lies = any(letter.recipient == login and letter.folder == folder for letter in each.letters)
                assert (each.subject in shown) == lies, (folder, each.subject)
        first = ((each, each.letters[0]) for each in MAIL.conversations)
        stranger = next(each for each, letter in first if login not in (letter.sender, letter.recipient))
        assert visitor.http.get(stranger.path).status_code == 404
        assert visitor.http.get(f"/mail/reply/{stranger.letters[0].pk}/").status_code == 404
        assert 'href="/mail/"' in visitor.see("/catalogue/")
        assert 'href="/mail/"' in visitor.see("/forum/")
        assert 'href="/mail/"' in visitor.see("/tracker/wiki")
        assert visitor.http.get("/static/postman/css/postman.css").status_code == 200
    with Visitor(arena) as nobody:
        assert nobody.http.get("/mail/inbox/").headers["Location"].startswith("/accounts/login/")


@pytest.mark.arena
def test_what_is_written_arrives_in_its_own_session_alone(arena: Arena) -> None:
    sender, recipient = list(CUSTOMERS)[:2]
    query = "SELECT group_concat(moderation_status || ' ' || body) FROM postman_message WHERE subject = 'A *word*'"
    with Visitor(arena, f"customer:{sender}") as visitor, Visitor(arena, f"customer:{recipient}") as elsewhere:
        letter = {"recipients": f"{recipient}, {STAFF_EMAIL}", "subject": "A *word*", "body": "Is it <b>yours</b>?"}
        visitor.send("/mail/write/", "Send", **letter)
        assert "A *word*" in visitor.see("/mail/sent/")
        assert first_value(visitor.session.database, query, 60) == "a Is it <b>yours</b>?,a Is it <b>yours</b>?"
        assert "A *word*" not in elsewhere.see("/mail/")
        assert first_value(elsewhere.session.database, query, 60) is None
        with pytest.raises(AssertionError, match="Some usernames are unknown"):
            visitor.send("/mail/write/", "Send", **{**letter, "recipients": "nobody@example.com"})
