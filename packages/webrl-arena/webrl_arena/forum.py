"""Tasks of the forum, alone and together with the shop: customers read, write and vote, the staff moderate.

First what several tasks share and what draws their entities and success, then the table: each template's name and its
draw. `experts.yaml` says how it is done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from webrl_arena.storefront import in_basket, search_for_kind
from webrl_arena.templates import (
    Draw,
    Entities,
    Eval,
    Instance,
    Template,
    about,
    any_customer,
    finds,
    is_answered,
    is_titled,
    leads_to,
    quoted,
    rows,
)
from webrl_arena.world.content import STAFF_EMAIL, load_words
from webrl_arena.world.forum import ANNOUNCEMENTS, ORDERS, SWAP, Topic, forum

_POST, _TOPIC = "forum_conversation_post", "forum_conversation_topic"


def talks(e: Entities) -> list[Topic]:
    """Return the topics that customers have begun and all of whose posts are shown."""
    return [topic for topic in e.topics if topic.posts[0].email and topic.shown == topic.posts]


def _of_talk(succeeds: Callable[[Topic], Eval]) -> Draw:
    return about(talks, lambda topic: {"topic": topic.subject}, succeeds)


def _subscriptions(login: str) -> set[str]:
    return {topic.subject for topic in forum().topics if login in topic.subscribers}


def _subscribed(login: str, subjects: set[str]) -> Eval:
    tables = f"""{_TOPIC}_subscribers s JOIN {_TOPIC} t ON t.id = s.topic_id JOIN auth_user u ON u.id = s.user_id
        WHERE u.email = {quoted(login)}"""
    return rows("t.subject", tables, subjects)


def _marked(condition: str, e: Entities, rng: random.Random) -> Instance:
    """Require that a condition holds of one topic, and of no other."""
    topic = rng.choice(talks(e))
    return Instance({"topic": topic.subject}, rows("t.subject", f"{_TOPIC} t WHERE {condition}", {topic.subject}))


def _judge_waiting(approve: bool, e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice([topic for topic in e.topics if not topic.posts[-1].approved])
    post = topic.posts[-1]
    shown = f"SELECT count(*) FROM {_POST} WHERE id = {post.pk}" + (" AND approved" if approve else "")
    query = f"SELECT (SELECT count(*) FROM {_POST} WHERE NOT approved) || ' ' || ({shown})"
    slots = {"topic": topic.subject, "customer": post.author}
    return Instance(slots, finds(query, f"{forum().num_waiting - 1} {int(approve)}"))


def _answer(asks: str, e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice([topic for topic in e.topics if topic.asks == asks])
    taken = {post.email for post in topic.posts}
    product, login = topic.product, rng.choice([c.email for c in e.customers if c.email not in taken])
    assert product is not None
    known = {"price": f"${product.price}", "stock": str(product.stock), "weight": dict(product.attributes)["Weight"]}
    return Instance({"topic": topic.subject, "product": product.title}, replied(topic, login, known[asks]), login)


def written(row: str) -> Eval:
    """Require one new post, as `BOARD / SUBJECT OF ITS TOPIC / WRITER / TEXT`, and no other."""
    tables = f"""{_POST} p JOIN {_TOPIC} t ON t.id = p.topic_id JOIN forum_forum f ON f.id = t.forum_id
        JOIN auth_user u ON u.id = p.poster_id WHERE p.id > {forum().num_posts}"""
    return rows("f.name || ' / ' || t.subject || ' / ' || u.email || ' / ' || p.content", tables, {row})


def replied(topic: Topic, login: str, text: str) -> Eval:
    """Require one new post, in a topic, and no other."""
    return written(f"{topic.board.name} / {topic.subject} / {login} / {text}")


def _finish(e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice([topic for topic in e.topics if topic.posts[-1].finish])
    post = rng.choice(topic.posts[1:])
    slots = {"topic": topic.subject, "customer": post.author}
    return Instance(slots, is_answered(post.finish), any_customer(e, rng))


def _new_topic(e: Entities, rng: random.Random) -> Instance:
    board = rng.choice([board for board in forum().boards if board.name not in (ANNOUNCEMENTS, SWAP)])
    login, name, text = any_customer(e, rng), rng.choice(e.names), rng.choice(load_words("tasks").posts)
    evaluation = written(f"{board.name} / {name} / {login} / {text}")
    return Instance({"board": board.name, "name": name, "text": text}, evaluation, login)


def _announce(e: Entities, rng: random.Random) -> Instance:
    name, text = rng.choice(e.names), rng.choice(load_words("tasks").news)
    evaluation = written(f"{ANNOUNCEMENTS} / {name} / {STAFF_EMAIL} / {text}")
    return Instance({"name": name, "text": text}, evaluation)


def _reply(e: Entities, rng: random.Random) -> Instance:
    topic, login, text = rng.choice(talks(e)), any_customer(e, rng), rng.choice(load_words("tasks").posts)
    return Instance({"topic": topic.subject, "text": text}, replied(topic, login, text), login)


def _edit(e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice(talks(e))
    post = rng.choice(topic.posts[1:])
    text = rng.choice(load_words("tasks").posts)
    evaluation = finds(f"SELECT content FROM {_POST} WHERE id = {post.pk}", text)
    return Instance({"topic": topic.subject, "text": text}, evaluation, post.email)


def _delete(e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice(talks(e))
    post = rng.choice(topic.posts[1:])
    query = f"SELECT (SELECT count(*) FROM {_POST}) || ' ' || (SELECT count(*) FROM {_POST} WHERE id = {post.pk})"
    return Instance({"topic": topic.subject}, finds(query, f"{forum().num_posts - 1} 0"), post.email)


def _subscribe(e: Entities, rng: random.Random) -> Instance | None:
    topic, login = rng.choice(talks(e)), any_customer(e, rng)
    if login in topic.subscribers:
        return None
    return Instance({"topic": topic.subject}, _subscribed(login, {*_subscriptions(login), topic.subject}), login)


def _unsubscribe(e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice(talks(e))
    login = rng.choice(topic.subscribers)
    return Instance({"topic": topic.subject}, _subscribed(login, _subscriptions(login) - {topic.subject}), login)


def _vote(e: Entities, rng: random.Random) -> Instance | None:
    topic, login = rng.choice([topic for topic in e.topics if topic.poll]), any_customer(e, rng)
    polls = [(each.subject, each.poll) for each in forum().topics if each.poll]
    before = {f"{subject} {dict(poll.votes)[login]}" for subject, poll in polls if login in dict(poll.votes)}
    if topic.poll is None or login in dict(topic.poll.votes):
        return None
    option = rng.choice(topic.poll.options)
    tables = f"""forum_polls_topicpollvote v JOIN forum_polls_topicpolloption o ON o.id = v.poll_option_id
        JOIN forum_polls_topicpoll p ON p.id = o.poll_id JOIN {_TOPIC} t ON t.id = p.topic_id
        JOIN auth_user u ON u.id = v.voter_id WHERE u.email = {quoted(login)}"""
    evaluation = rows("t.subject || ' ' || o.text", tables, {*before, f"{topic.subject} {option}"})
    return Instance({"topic": topic.subject, "option": option}, evaluation, login)


def _signature(e: Entities, rng: random.Random) -> Instance:
    login, text = any_customer(e, rng), f"{rng.choice(load_words('tasks').mottos)}, {rng.choice(e.names)}"
    query = f"""SELECT p.signature FROM forum_member_forumprofile p JOIN auth_user u ON u.id = p.user_id
        WHERE u.email = {quoted(login)}"""
    return Instance({"text": text}, finds(query, text), login)


def _move(e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice(talks(e))
    board = rng.choice([board for board in forum().boards if board != topic.board])
    there = sum(each.board == board for each in forum().topics)
    query = f"""SELECT f.name || ' ' || (SELECT count(*) FROM {_TOPIC} o WHERE o.forum_id = f.id)
        FROM {_TOPIC} t JOIN forum_forum f ON f.id = t.forum_id WHERE t.id = {topic.pk}"""
    return Instance({"topic": topic.subject, "board": board.name}, finds(query, f"{board.name} {there + 1}"))


def _basket(e: Entities, rng: random.Random) -> Instance:
    topic, login = rng.choice([topic for topic in e.topics if topic.product]), any_customer(e, rng)
    assert topic.product is not None
    return Instance({"topic": topic.subject}, in_basket(login, f"1 {topic.product.upc}"), login)


_task = partial(Template, "forum")
_held = partial(_task, held_out=True)
FORUM: tuple[Template, ...] = (
    _task("author", _of_talk(lambda t: is_answered(t.posts[0].author))),
    _held("last-author", _of_talk(lambda t: is_answered(t.posts[-1].author))),
    _task("num-replies", _of_talk(lambda t: is_answered(str(len(t.posts) - 1)))),
    _task("finish", _finish),
    _held(
        "num-posts",
        _of_talk(
            lambda t: is_answered(str(sum(p.email == t.posts[0].email for each in forum().topics for p in each.shown)))
        ),
    ),
    _task("open-topic", _of_talk(lambda t: leads_to(t.path))),
    _held("open-member", _of_talk(lambda t: is_titled(f"{t.posts[0].author} profile"))),
    _task("search", search_for_kind("/forum/search/")),
    _task("new-topic", _new_topic),
    _held("announce", _announce),
    _task("reply", _reply),
    _task("edit", _edit),
    _held("delete", _delete),
    _task("subscribe", _subscribe),
    _held("unsubscribe", _unsubscribe),
    _task("vote", _vote),
    _task("signature", _signature),
    _task("lock", partial(_marked, "t.status = 1")),
    _task("sticky", partial(_marked, "t.type = 1")),
    _held("move", _move),
    _task("approve", partial(_judge_waiting, True)),
    _held("disapprove", partial(_judge_waiting, False)),
    Template("forum+shop", "answer-price", partial(_answer, "price")),
    Template("forum+shop", "answer-weight", partial(_answer, "weight")),
    Template("forum+shop", "answer-stock", partial(_answer, "stock"), held_out=True),
    Template("forum+shop", "basket-of-topic", _basket),
    Template(
        "shop+forum",
        "report-order",
        about(
            lambda e: e.orders,
            lambda o: {"number": o.number},
            lambda o: written(f"{ORDERS} / {o.number} / {o.email} / {o.status}"),
            lambda o: o.email,
        ),
        held_out=True,
    ),
)
