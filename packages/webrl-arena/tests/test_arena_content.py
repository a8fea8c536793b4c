"""What the arena's sites hold: the same on every machine and in every version, with an evaluation of its own."""

import hashlib
from collections.abc import Callable

import pytest

from webrl_arena.world.content import catalogue, for_evaluation, load_words
from webrl_arena.world.forum import forum
from webrl_arena.world.mail import mail
from webrl_arena.world.tracker import tracker


@pytest.mark.parametrize(
    ("make", "digest"),
    [
        (catalogue, "a76515b3c6fb5455"),
        (forum, "eb78ba197c811e28"),
        (mail, "303ab17532593e2c"),
        (tracker, "f8c11ad88c408b41"),
    ],
)
def test_the_content_is_that_of_published_scores(make: Callable[[int], object], digest: str) -> None:
    assert hashlib.sha256(repr((make(0), make(7))).encode()).hexdigest()[:16] == digest


def test_the_forum_has_topics_enough_which_all_differ_and_keep_the_evaluation_s_people_to_themselves() -> None:
    content = forum()
    assert len(content.topics) >= 180
    assert len({topic.subject for topic in content.topics}) == len(content.topics)
    assert len({topic.path for topic in content.topics}) == len(content.topics)
    posts = [post for topic in content.topics for post in topic.posts]
    assert [post.pk for post in posts] == list(range(1, content.num_posts + 1))
    assert len(posts) >= 600
    assert len({post.author for post in posts}) >= 120
    people = {person.email: for_evaluation(i) for i, person in enumerate(catalogue().customers)}
    products = {product.upc: for_evaluation(i) for i, product in enumerate(catalogue().products)}
    for topic in content.topics:
        dates = [post.date for post in topic.posts]
        assert dates == sorted(set(dates))
        voters = [email for email, _ in topic.poll.votes] if topic.poll else []
        emails = [*(post.email for post in topic.posts), *voters]
        assert {people[email] for email in emails if email} <= {topic.evaluation}
        assert set(topic.subscribers) <= {post.email for post in topic.posts}
        assert topic.posts[0].approved
        if topic.product:
            assert products[topic.product.upc] == topic.evaluation
            assert topic.product.title in topic.posts[0].text
            assert topic.asks in load_words("forum").asks
