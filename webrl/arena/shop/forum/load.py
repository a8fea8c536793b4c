"""The forum's tables as every session begins with them: machina's, filled with the content of a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from machina.core.db.models import get_model
from machina.models.fields import render_func

from webrl.arena.forum.content import Forum, Post, Topic
from webrl.arena.forum.words import ANNOUNCEMENTS, SWAP

_READ = ("can_see_forum", "can_read_forum")
_WRITE = (
    *("can_start_new_topics", "can_reply_to_topics", "can_edit_own_posts", "can_delete_own_posts"),
    *("can_post_without_approval", "can_vote_in_polls"),
)
_DENIED = {ANNOUNCEMENTS: "can_start_new_topics", SWAP: "can_post_without_approval"}
"""What customers may not do in a board. The staff may do everything."""


def load(content: Forum, users: Mapping[str, User]) -> None:
    """Fill the tables, which are there and empty.

    Args:
        users: by e-mail address; "" is the staff.
    """
    boards = _boards(content)
    _permissions(boards)
    topics = _topics(content, boards, users)
    _posts(content, topics, users)
    _polls(content, topics, users)
    _profiles(content, users)
    for board in boards.values():
        board.update_trackers()


def _boards(content: Forum) -> dict[str, Any]:
    Row = get_model("forum", "Forum")  # noqa: N806 - a class
    categories: dict[str, Any] = {}
    boards: dict[str, Any] = {}
    for board in content.boards:
        if board.category not in categories:
            categories[board.category] = Row.objects.create(name=board.category, type=Row.FORUM_CAT)
        parent = categories[board.category]
        boards[board.name] = Row.objects.create(
            name=board.name, description=board.description, type=Row.FORUM_POST, parent=parent
        )
        assert boards[board.name].pk == board.pk
    return boards


def _permissions(boards: dict[str, Any]) -> None:
    Grant = get_model("forum_permission", "UserForumPermission")  # noqa: N806 - a class
    permissions = {row.codename: row for row in get_model("forum_permission", "ForumPermission").objects.all()}
    Grant.objects.bulk_create(
        [
            *(Grant(permission=permissions[name], anonymous_user=True) for name in _READ),
            *(Grant(permission=permissions[name], authenticated_user=True) for name in (*_READ, *_WRITE)),
            *(
                Grant(permission=permissions[name], authenticated_user=True, forum=boards[board], has_perm=False)
                for board, name in _DENIED.items()
            ),
        ]
    )


def _topics(content: Forum, boards: dict[str, Any], users: Mapping[str, User]) -> dict[int, Any]:
    Row = get_model("forum_conversation", "Topic")  # noqa: N806 - a class
    Row.objects.bulk_create(
        Row(
            pk=topic.pk,
            forum=boards[topic.board.name],
            poster=users[topic.posts[0].email],
            subject=topic.subject,
            slug=topic.path.split("/")[-2].rpartition("-")[0],
            type=Row.TOPIC_POST,
            status=Row.TOPIC_UNLOCKED,
            posts_count=len(topic.shown),
            views_count=topic.views,
            last_post_on=topic.shown[-1].date,
        )
        for topic in content.topics
    )
    rows = {row.pk: row for row in Row.objects.all()}
    subscribed = Row.subscribers.through
    subscribed.objects.bulk_create(
        subscribed(topic_id=topic.pk, user_id=users[email].pk)
        for topic in content.topics
        for email in topic.subscribers
    )
    return rows


def _posts(content: Forum, topics: dict[int, Any], users: Mapping[str, User]) -> None:
    Row, TopicRow = get_model("forum_conversation", "Post"), get_model("forum_conversation", "Topic")  # noqa: N806
    pairs = [(topic, post) for topic in content.topics for post in topic.posts]
    made = Row.objects.bulk_create(_post(Row, topic, post, users) for topic, post in pairs)
    for row, (_, post) in zip(made, pairs, strict=True):
        row.created = row.updated = post.date
    Row.objects.bulk_update(made, ["created", "updated"], batch_size=200)
    for topic in content.topics:
        row = topics[topic.pk]
        row.first_post_id, row.last_post_id = topic.posts[0].pk, topic.shown[-1].pk
        row.created = row.updated = topic.posts[0].date
    columns = ["first_post_id", "last_post_id", "created", "updated"]
    TopicRow.objects.bulk_update(topics.values(), columns, batch_size=200)


def _post(row: Any, topic: Topic, post: Post, users: Mapping[str, User]) -> Any:
    made = row(
        pk=post.pk,
        topic_id=topic.pk,
        poster=users[post.email],
        subject=topic.subject if post is topic.posts[0] else f"Re: {topic.subject}",
        content=post.text,
        approved=post.approved,
    )
    made._content_rendered = render_func(post.text)  # many at once are saved without machina's signals
    return made


def _polls(content: Forum, topics: dict[int, Any], users: Mapping[str, User]) -> None:
    Row, Option, Vote = (  # noqa: N806 - classes
        get_model("forum_polls", name) for name in ("TopicPoll", "TopicPollOption", "TopicPollVote")
    )
    for topic in content.topics:
        if topic.poll is None:
            continue
        poll = Row.objects.create(topic=topics[topic.pk], question=topic.poll.question, max_options=1)
        options = {text: Option.objects.create(poll=poll, text=text) for text in topic.poll.options}
        Vote.objects.bulk_create(
            Vote(voter=users[email], poll_option=options[text]) for email, text in topic.poll.votes
        )
    Row.objects.update(created=content.topics[0].posts[0].date, updated=content.topics[0].posts[0].date)
    Vote.objects.update(timestamp=content.topics[0].posts[0].date)


def _profiles(content: Forum, users: Mapping[str, User]) -> None:
    Profile = get_model("forum_member", "ForumProfile")  # noqa: N806 - a class
    written = Counter(post.email for topic in content.topics for post in topic.shown)
    Profile.objects.bulk_create(Profile(user=user, posts_count=written[email]) for email, user in users.items())
