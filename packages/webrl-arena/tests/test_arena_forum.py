"""The arena's forum: real machina pages beside the shop, on the same accounts and in the same sessions."""

import html
import re

import pytest
from arena_server import Visitor

from webrl_arena.world.client import Arena
from webrl_arena.world.content import catalogue
from webrl_arena.world.forum import ANNOUNCEMENTS, POLLS, QUESTIONS, SWAP, forum
from webrl_site.checks import first_value

pytestmark = pytest.mark.arena

FORUM, CUSTOMERS = forum(), catalogue().customers
BOARDS = {board.name: board for board in FORUM.boards}


def test_boards_and_topics_show_what_the_content_says(arena: Arena) -> None:
    topic = next(topic for topic in FORUM.topics if len(topic.posts) > 4)
    with Visitor(arena) as visitor:
        front = html.unescape(visitor.see("/forum/"))
        for board in FORUM.boards:
            assert board.path in front
            assert board.description in front
        listed = html.unescape(visitor.see(topic.board.path))
        for other in FORUM.topics:
            assert (f'"{other.path}"' in listed) == (other.board == topic.board)
        page = html.unescape(visitor.see(topic.path))
        for post in topic.posts:
            assert post.text in page
            assert post.author in page
        assert "Post reply" not in page  # nobody is logged in
        swap = next(topic for topic in FORUM.topics if topic.board.name == SWAP)
        assert swap.posts[0].text in html.unescape(visitor.see(swap.path))
        assert swap.posts[-1].author not in html.unescape(visitor.see(swap.path))  # waits for the staff
        person = CUSTOMERS[0]
        profile = visitor.see(f"/forum/member/profile/{person.pk}/")
        written = sum(post.email == person.email for topic in FORUM.topics for post in topic.shown)
        assert f"<strong>{written}</strong>" in profile
        assert f"<h1>{person.name} profile</h1>" in html.unescape(profile)


def test_each_site_leads_to_the_other(arena: Arena) -> None:
    with Visitor(arena, f"customer:{CUSTOMERS[0].email}") as visitor:
        assert 'href="/forum/"' in visitor.see("/catalogue/")
        page = visitor.see("/forum/")
        assert 'href="/"' in page
        assert CUSTOMERS[0].name in page


def test_search_finds_words_subjects_and_writers_and_what_was_written_just_now(arena: Arena) -> None:
    topic = next(topic for topic in FORUM.topics if topic.product)
    with Visitor(arena, f"customer:{topic.posts[0].email}") as visitor, Visitor(arena) as other:
        assert f"{topic.path}" in visitor.see(f"/forum/search/?q={topic.product.kind if topic.product else ''}")
        by_words = [post for topic in FORUM.topics for post in topic.shown if "honey" in post.text]
        assert not by_words  # some offer it, in posts that wait
        assert "No results" in visitor.see("/forum/search/?q=honey")
        visitor.send(f"{topic.path}post/create/", "Submit", content="A jar of honey says it is the heavy one.")
        assert topic.path in visitor.see("/forum/search/?q=honey+-bees")
        assert "No results" in visitor.see("/forum/search/?q=honey&search_topics=on")
        assert topic.path in visitor.see(f"/forum/search/?q=honey&search_poster_name={topic.posts[0].author}")
        assert "No results" in visitor.see("/forum/search/?q=honey&search_poster_name=Nobody+Else")
        assert "No results" in visitor.see(f"/forum/search/?q=honey&search_forums={BOARDS[SWAP].pk}")
        assert "No results" in other.see("/forum/search/?q=honey")


def test_customers_write_edit_vote_and_subscribe_and_do_what_they_may_alone(arena: Arena) -> None:
    topic = next(topic for topic in FORUM.topics if topic.poll)
    assert topic.poll
    voter = next(c for c in CUSTOMERS if c.email not in dict(topic.poll.votes) and c.email != topic.posts[0].email)
    with Visitor(arena, f"customer:{voter.email}") as visitor:
        assert "Edit</a>" not in visitor.see(topic.path)
        option = _value(visitor, "SELECT max(id) FROM forum_polls_topicpolloption")
        assert option
        board = BOARDS[QUESTIONS].path
        visitor.send(f"{board}topic/create/", "Submit", subject="Is it *loud*?", content="I mean the **big** one.")
        new = _value(visitor, "SELECT max(id) FROM forum_conversation_topic")
        page = visitor.see(f"{board}topic/is-it-loud-{new}/")
        assert "<strong>big</strong>" in page
        assert "Edit</a>" in page
        visitor.send(f"{board}topic/is-it-loud-{new}/update/", "Submit", content="I mean the small one.")
        assert "I mean the small one." in visitor.see(board + f"topic/is-it-loud-{new}/")
        visitor.send(f"/forum/member/topic/{topic.pk}/subscribe/", "Yes, I'm sure")
        assert topic.path in visitor.see("/forum/member/subscriptions/")
        poll = _value(visitor, f"SELECT id FROM forum_polls_topicpoll WHERE topic_id = {topic.pk}")
        chosen = _value(visitor, f"SELECT min(id) FROM forum_polls_topicpolloption WHERE poll_id = {poll}")
        visitor.send(topic.path, "Submit", options=chosen)
        votes = f"SELECT count(*) FROM forum_polls_topicpollvote WHERE poll_option_id = {chosen}"
        before = sum(option == topic.poll.options[0] for _, option in topic.poll.votes)
        assert _value(visitor, votes) == before + 1
        for forbidden in (
            f"{BOARDS[ANNOUNCEMENTS].path}topic/create/",
            "/forum/moderation/queue/",
            f"/forum/moderation/topic/{topic.path.split('/')[-2]}/lock/",
        ):
            assert visitor.http.get(forbidden, follow_redirects=True).status_code == 403


def test_the_staff_read_what_waits_and_moderate(arena: Arena) -> None:
    topic = next(topic for topic in FORUM.topics if topic.board.name == SWAP)
    waiting, name = topic.posts[-1], topic.path.split("/")[-2]
    with Visitor(arena, "staff") as staff:
        assert staff.see("/forum/moderation/queue/").count("/forum/moderation/queue/") > 10
        staff.send(f"/forum/moderation/queue/{waiting.pk}/approve/", "Yes, I'm sure")
        assert waiting.text in html.unescape(staff.see(topic.path))
        staff.send(f"/forum/moderation/topic/{name}/lock/", "Yes, I'm sure")
        assert "locked" in staff.see(topic.board.path)
        form = f"/forum/moderation/topic/{name}/move/"
        assert len(re.findall("<option", staff.see(form))) == len(FORUM.boards) - 1
        staff.send(form, "Yes, I'm sure", forum=BOARDS[POLLS].pk, lock_topic="")
        assert f"{BOARDS[POLLS].path}topic/{name}/" in staff.see(BOARDS[POLLS].path)


def _value(visitor: Visitor, query: str) -> object:
    return first_value(visitor.session.database, query, 60)
